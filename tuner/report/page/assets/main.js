// Puts the page together, and draws it anew whenever something is chosen.

/** @type {Data} */
let data = JSON.parse(byId("data", HTMLElement).textContent);
/** @type {View} */
const view = { device: "", op: "", text: "", task: 0, clock: "trials", tables: {}, again };

/**
 * Lets the page show other data from the next time on that it is drawn.
 * @param {Data} found
 */
function take(found) {
  data = found;
}

function sections() {
  return listed.flatMap((list) => list(data));
}

/** @param {Section} section */
function built({ id, title, build }) {
  const heading = el("h2", { id: `${id}-title` }, title);
  return el("section", { id, tabindex: -1, "aria-labelledby": `${id}-title` }, heading, build(data, view));
}

/** @param {string} [focus] */
function again(focus) {
  keeping(() => byId("main", HTMLElement).replaceChildren(...sections().map(built)), focus);
}

/**
 * @param {"device" | "op"} name
 * @param {[string | number, string][]} options
 */
function fillFilter(name, options) {
  const select = byId(`filter-${name}`, HTMLSelectElement);
  const all = [["", "all"], ...options];
  select.replaceChildren(...all.map(([v, text]) => el("option", { value: v }, short(text, 80))));
  select.value = view[name];
}

function fillFilters() {
  const ops = [...new Set(data.tasks.map((t) => t.op))].sort();
  fillFilter(
    "device",
    data.devices.map((d, i) => [i, d.name]),
  );
  fillFilter(
    "op",
    ops.map((op) => [op, op]),
  );
}

/**
 * @param {"device" | "op" | "text"} name
 * @param {string} event
 */
function listen(name, event) {
  const node = byId(`filter-${name}`, HTMLElement);
  node.addEventListener(event, () => {
    if (node instanceof HTMLSelectElement || node instanceof HTMLInputElement) view[name] = node.value;
    again();
  });
}

function heading() {
  const source = `${data.database}, ${when(data.made)}, edgetune ${data.edgetune}`;
  byId("source", HTMLElement).textContent = short(source, 400);
  const links = sections().map(({ id, title }) => el("li", null, el("a", { id: `to-${id}`, href: `#${id}` }, title)));
  byId("sections", HTMLElement).replaceChildren(...links);
}

function start() {
  offerThemes();
  byId("filters", HTMLElement).addEventListener("submit", (event) => event.preventDefault());
  listen("device", "change");
  listen("op", "change");
  listen("text", "input");
  onOtherWidth(again);
  fillFilters();
  heading();
  again();
}

if ("live" in data) watch();
else start();
