"use strict";
// Makes elements, texts and tables. Whatever comes from a database or a module is data, and is shown only as text.

const SVG = "http://www.w3.org/2000/svg";
const LONGEST = 160; // characters of a name that are shown; the CSV has all

function put(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(shown(String(child))));
  }
  return node;
}

function el(tag, attributes, ...children) {
  return put(document.createElement(tag), attributes, children);
}

function draw(tag, attributes, ...children) {
  return put(document.createElementNS(SVG, tag), attributes, children);
}

// These characters are invisible or change the direction of text: they are written as escapes.
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

function shown(text) {
  return text.replace(UNSEEN, (c) => "\\u" + c.codePointAt(0).toString(16).padStart(4, "0"));
}

function short(text, most = LONGEST) {
  const all = shown(String(text));
  return all.length <= most ? all : `${all.slice(0, most)}… (${all.length.toLocaleString("en")} characters)`;
}

function digits(number, places = 4) {
  return number === null || number === undefined || !isFinite(number) ? "-" : String(Number(number.toPrecision(places)));
}

function time(seconds) {
  if (seconds === null || seconds === undefined || !isFinite(seconds)) return "-";
  const [unit, factor] = seconds >= 1 ? ["s", 1] : seconds >= 1e-3 ? ["ms", 1e3] : ["us", 1e6];
  return `${digits(seconds * factor)} ${unit}`;
}

function rate(flops) {
  return flops ? `${digits(flops / 1e9, 3)} GF/s` : "-";
}

function many(count, what) {
  return `${count.toLocaleString("en")} ${what}${count === 1 ? "" : "s"}`;
}

function percent(share) {
  return share === null || share === undefined || !isFinite(share) ? "-" : `${digits(100 * share, 3)} %`;
}

function when(moment) {
  return new Date(moment * 1000).toISOString().slice(0, 19).replace("T", " ") + " UTC";
}

// A text that a spreadsheet would take for a formula gets an apostrophe in front, as spreadsheets do it themselves.
function cell(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return String(value);
  const text = /^[=+\-@\t\r]/.test(value) ? "'" + value : String(value);
  return /[",\n\r]/.test(text) ? '"' + text.replaceAll('"', '""') + '"' : text;
}

function csv(columns, rows) {
  const lines = [columns.map((c) => cell(c.title)), ...rows.map((row) => columns.map((c) => cell(c.get(row))))];
  return lines.map((line) => line.join(",") + "\r\n").join("");
}

function csvButton(name, columns, rows) {
  const save = () => {
    const url = URL.createObjectURL(new Blob([csv(columns, rows())], { type: "text/csv" }));
    el("a", { href: url, download: `${name}.csv` }).click();
    setTimeout(() => URL.revokeObjectURL(url), 10000);
  };
  return el("button", { type: "button", id: `csv-${name}`, onclick: save, "data-csv": name, "aria-label": `CSV of ${name}` }, "CSV");
}

// A column has a title and get(row), the value that is sorted and exported. It may have text(row) or node(row) for what
// is shown, and `number`, which aligns it to the right. `view` keeps the user's choices while the page is drawn anew.
const PAGE = 25;
const WIDEST = 32; // characters: the most that a text cell claims as its least width

function table(name, caption, columns, rows, view) {
  const mine = (view.tables[name] ??= { sort: null, down: false, filter: "", page: 0 });
  const body = el("tbody"), heads = el("tr"), state = el("span", { role: "status", class: "soft" });
  const back = el("button", { type: "button", id: `back-${name}`, onclick: () => turn(-1) }, "Previous");
  const on = el("button", { type: "button", id: `on-${name}`, onclick: () => turn(1) }, "Next");
  let chosen = rows;

  const turn = (by) => { mine.page += by; fill(); };
  const choose = () => {
    const wanted = mine.filter.toLowerCase();
    const texts = (row) => columns.some((c) => String(c.text ? c.text(row) : c.get(row)).toLowerCase().includes(wanted));
    chosen = wanted ? rows.filter(texts) : [...rows];
    const by = columns.find((c) => c.title === mine.sort);
    if (by) chosen.sort((a, b) => compare(by.get(a), by.get(b)) * (mine.down ? -1 : 1));
    fill();
  };
  const fill = () => {
    const pages = Math.max(1, Math.ceil(chosen.length / PAGE));
    mine.page = Math.max(0, Math.min(mine.page, pages - 1));
    const part = chosen.slice(mine.page * PAGE, (mine.page + 1) * PAGE);
    body.replaceChildren(...part.map((row) => el("tr", null, columns.map((c) => cellOf(c, row)))));
    back.disabled = mine.page === 0;
    on.disabled = mine.page === pages - 1;
    state.textContent = many(chosen.length, "row") + (pages > 1 ? `, page ${mine.page + 1} of ${pages}` : "");
    heads.replaceChildren(...columns.map((c) => headOf(c)));
  };
  const headOf = (column) => {
    const sorted = mine.sort === column.title, id = `sort-${name}-${columns.indexOf(column)}`;
    const sort = () => {
      mine.down = sorted ? !mine.down : Boolean(column.number);
      mine.sort = column.title;
      choose();
      document.getElementById(id).focus();
    };
    const mark = sorted ? (mine.down ? " ▼" : " ▲") : "";
    const order = sorted ? (mine.down ? "descending" : "ascending") : null;
    return el("th", { scope: "col", class: column.number ? "number" : null, "aria-sort": order }, el("button", { type: "button", id, onclick: sort }, column.title, mark));
  };
  const input = el("input", { type: "search", autocomplete: "off", id: `filter-of-${name}` });
  input.value = mine.filter;
  input.addEventListener("input", () => { mine.filter = input.value; mine.page = 0; choose(); });
  choose();
  return el("div", { "data-table": name },
    el("div", { class: "controls" }, el("label", null, `Filter ${caption}`, input), csvButton(name, columns, () => chosen),
      back, on, state),
    el("div", { class: "scroll", id: `scroll-${name}`, tabindex: 0, role: "region", "aria-label": `${caption}, table` },
      el("table", { "aria-label": caption }, el("thead", null, heads), body)));
}

function cellOf(column, row) {
  const value = column.get(row);
  const content = column.node ? column.node(row) : short(column.text ? column.text(row) : value ?? "-");
  const box = el("td", { class: column.number ? "number" : null, "data-value": column.number ? value ?? "" : null }, content);
  // The table is as wide as its texts need, and scrolls. Otherwise a column of text is squeezed to its longest word.
  if (!column.number) box.style.minWidth = `${Math.min(WIDEST, box.textContent.length + 4)}ch`;
  return box;
}

function compare(a, b) {
  const lacks = (v) => v === null || v === undefined;
  if (lacks(a) || lacks(b)) return lacks(a) - lacks(b);
  return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
}

function chooser(title, options, value, change, id) {
  const select = el("select", { id }, options.map(([v, text]) => el("option", { value: v }, short(text, 100))));
  select.value = String(value);
  select.addEventListener("change", () => change(select.value));
  return el("label", null, title, select);
}

function facts(pairs) {
  return el("dl", { class: "facts" }, pairs.map(([name, value]) => el("div", null, el("dt", null, name), el("dd", null, value))));
}

// Draws a part of the page anew and restores the user's state: focus, selection in a field, scroll positions, and open
// details. Whatever can have the focus has an id that stays. `else_` gets the focus if the element that had it is gone.
function keeping(redraw, focus, else_) {
  const active = document.activeElement, held = focus || active?.id, home = active?.closest("section[id]")?.id;
  const chosen = active instanceof HTMLInputElement ? [active.selectionStart, active.selectionEnd] : null;
  const scrolled = [...document.querySelectorAll(".scroll[id], pre[id]")].map((n) => [n.id, n.scrollLeft, n.scrollTop]);
  const open = [...document.querySelectorAll("details[open]")].map((n) => n.id), top = window.scrollY;
  redraw();
  for (const id of open) document.getElementById(id)?.setAttribute("open", "");
  for (const [id, left, down] of scrolled) document.getElementById(id)?.scrollTo(left, down);
  const next = held && [held, else_, home].map((id) => id && document.getElementById(id)).find((n) => n && !n.disabled);
  if (next && next !== document.activeElement) {
    next.focus({ preventScroll: true });
    if (chosen && next.id === active.id) next.setSelectionRange(...chosen);
  }
  window.scrollTo(0, top);
}
