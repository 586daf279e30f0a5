// Keeps the page up to date while runs go on, and shows the tasks at work with buttons. `tune watch` serves the page.

const REST = 2000; // milliseconds between two requests
const ENDED = "tune watch has ended, or cannot be reached: this is what it showed last.";
const GONE = "tune watch has ended, or has another token now: open the link that it shows.";
let token = "";
let told = ""; // what the panel shows

// The token comes with the link and stays with the browser tab. A page that is loaded again comes without data.
async function watch() {
  token = new URLSearchParams(location.search).get("token") ?? sessionStorage.getItem("token") ?? "";
  history.replaceState(null, "", location.pathname + location.hash); // keeps the token out of history and screenshots
  if (!token) return lost("This page has no token: open the link that tune watch shows.");
  sessionStorage.setItem("token", token);
  if (!data.live) {
    const found = await exchange("/data", {});
    if (!found) return;
    take(found);
  }
  start();
  panel("");
  setTimeout(ask, REST);
}

/** @param {string} why */
function lost(why) {
  if (data.live) return panel(why);
  byId("main", HTMLElement).replaceChildren(el("p", { role: "alert", class: "warn" }, why));
}

async function ask() {
  const asked = await exchange("/data", {});
  if (asked) update(asked);
  setTimeout(ask, REST);
}

/**
 * Returns what the server answers, or null if it refuses or is gone.
 * @param {string} path
 * @param {RequestInit} options
 * @returns {Promise<Data | null>}
 */
async function exchange(path, options) {
  try {
    const answer = await fetch(path, { ...options, headers: { "X-Token": token }, cache: "no-store" });
    const found = await answer.json();
    if (answer.ok) return found;
    lost(found.error);
  } catch {
    lost(data.live ? ENDED : GONE);
  }
  return null;
}

/** @param {Data} found */
function update(found) {
  const same = found.made === data.made;
  const chooses = [...document.querySelectorAll("select")].some((s) => s.matches(":open"));
  if (chooses) return; // drawing anew would close the open list
  take(found);
  panel("");
  if (same) return;
  keeping(() => {
    fillFilters();
    heading();
    again();
  });
}

/** @param {Wish} what */
async function wish(what) {
  const found = await exchange("/wish", { method: "POST", body: JSON.stringify(what) });
  if (found) update(found);
}

/** @param {string} problem */
function panel(problem) {
  if (!data.live) return;
  const { paused, running } = data.live;
  const tell = JSON.stringify([problem, paused, running]);
  if (tell === told) return; // otherwise a screen reader reads it out again and again
  told = tell;
  const button = (/** @type {string} */ id, /** @type {string} */ text, /** @type {Wish} */ what) =>
    el("button", { type: "button", id, onclick: () => wish(what) }, text);
  const state = paused
    ? "Paused: runs wait before their next batch."
    : running.length
      ? "At work:"
      : "No run is at work.";
  const tasks = running.map((r) => {
    const where = `${short(r.text)} on ${short(r.device, 60)}`;
    const how = `${r.candidates} candidates under way, by ${short(r.owner, 60)}`;
    return el("li", null, `${where}: ${how} `, button(`skip-${r.id}`, "Skip this task", { wish: "skip", task: r.id }));
  });
  const pause = paused ? button("pause", "Go on", { wish: "resume" }) : button("pause", "Pause", { wish: "pause" });
  const said = el("p", { role: "status", class: problem ? "warn" : null }, problem || state);
  const box = byId("live", HTMLElement);
  box.hidden = false;
  keeping(() => box.replaceChildren(said, el("ul", null, tasks), pause), null, "pause");
}
