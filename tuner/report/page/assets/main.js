// Puts the page together, and draws it anew whenever something is chosen.

let data = JSON.parse(document.getElementById("data").textContent);
const view = { device: "", op: "", text: "", task: 0, clock: "trials", tables: {}, again: null };

function sections() {
  return listed.flatMap((list) => list(data));
}

function section({ id, title, build }) {
  return el("section", { id, tabindex: -1, "aria-labelledby": `${id}-title` }, el("h2", { id: `${id}-title` }, title), build(data, view));
}

function again(focus) {
  keeping(() => document.getElementById("main").replaceChildren(...sections().map(section)), focus);
}
view.again = again;

function fillFilters() {
  const fill = (id, name, options) => {
    const select = document.getElementById(id);
    select.replaceChildren(...options.map(([v, text]) => el("option", { value: v }, short(text, 80))));
    select.value = view[name];
  };
  fill("filter-device", "device", [["", "all"], ...data.devices.map((d, i) => [i, d.name])]);
  fill("filter-op", "op", [["", "all"], ...[...new Set(data.tasks.map((t) => t.op))].sort().map((op) => [op, op])]);
}

function listen(id, name, event) {
  const node = document.getElementById(id);
  node.addEventListener(event, () => { view[name] = node.value; again(); });
}

function theme(name) {
  document.documentElement.dataset.theme = name;
  document.getElementById("theme").textContent = name === "dark" ? "Light" : "Dark";
}

function heading() {
  document.getElementById("source").textContent = short(`${data.database}, ${when(data.made)}, edgetune ${data.edgetune}`, 400);
  document.getElementById("sections").replaceChildren(...sections().map(({ id, title }) => el("li", null, el("a", { id: `to-${id}`, href: `#${id}` }, title))));
}

function start() {
  theme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  document.getElementById("theme").addEventListener("click", () => theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
  document.getElementById("filters").addEventListener("submit", (event) => event.preventDefault());
  listen("filter-device", "device", "change");
  listen("filter-op", "op", "change");
  listen("filter-text", "text", "input");
  let width = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; again(); } });
  fillFilters();
  heading();
  again();
}

if ("live" in data) watch();
else start();
