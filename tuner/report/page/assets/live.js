// Keeps the page up to date while runs go on, and shows the tasks at work with buttons. `tune watch` serves the page.

const REST = 2000; // milliseconds between two requests
let token = null, told = null;

// The token comes with the link and stays with the browser tab. A page that is loaded again comes without data.
async function watch() {
  token = new URLSearchParams(location.search).get("token") ?? sessionStorage.getItem("token");
  history.replaceState(null, "", location.pathname + location.hash); // keeps the token out of history and screenshots
  if (!token) return lost("This page has no token: open the link that tune watch shows.");
  sessionStorage.setItem("token", token);
  if (!data.live) {
    const found = await exchange("/data", {});
    if (!found) return;
    data = found;
  }
  start();
  panel("");
  setTimeout(ask, REST);
}

function lost(why) {
  if (data.live) return panel(why);
  document.getElementById("main").replaceChildren(el("p", { role: "alert", class: "warn" }, why));
}

async function ask() {
  const asked = await exchange("/data", {});
  if (asked) update(asked);
  setTimeout(ask, REST);
}

async function exchange(path, options) {
  try {
    const answer = await fetch(path, { ...options, headers: { "X-Token": token }, cache: "no-store" });
    const found = await answer.json();
    if (answer.ok) return found;
    lost(found.error);
  } catch {
    lost(data.live ? "tune watch has ended, or cannot be reached: this is what it showed last." : "tune watch has ended, or has another token now: open the link that it shows.");
  }
  return null;
}

function update(found) {
  const same = found.made === data.made, chooses = [...document.querySelectorAll("select")].some((s) => s.matches(":open"));
  if (chooses) return; // drawing anew would close the open list
  data = found;
  panel("");
  if (same) return;
  keeping(() => {
    fillFilters();
    heading();
    again();
  });
}

async function wish(what) {
  const found = await exchange("/wish", { method: "POST", body: JSON.stringify(what) });
  if (found) update(found);
}

function panel(problem) {
  const { paused, running } = data.live, tell = JSON.stringify([problem, paused, running]);
  if (tell === told) return; // otherwise a screen reader reads it out again and again
  told = tell;
  const button = (id, text, what) => el("button", { type: "button", id, onclick: () => wish(what) }, text);
  const said = problem || (paused ? "Paused: runs wait before their next batch." : running.length ? "At work:" : "No run is at work.");
  const box = document.getElementById("live");
  box.hidden = false;
  keeping(() => box.replaceChildren(
    el("p", { role: "status", class: problem ? "warn" : null }, said),
    el("ul", null, running.map((r) => el("li", null,
      `${short(r.text)} on ${short(r.device, 60)}: ${r.candidates} candidates under way, by ${short(r.owner, 60)} `,
      button(`skip-${r.id}`, "Skip this task", { wish: "skip", task: r.id })))),
    paused ? button("pause", "Go on", { wish: "resume" }) : button("pause", "Pause", { wish: "pause" })), null, "pause");
}
