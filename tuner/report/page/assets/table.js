// Makes tables that can be sorted, filtered and turned over, and CSV.

const PAGE = 25; // rows
const WIDEST = 32; // characters: the most that a text cell claims as its least width
const FOLDED = 24; // characters of a long text that are shown until it is opened
const FEW = 2; // rows that need no filter

/**
 * Returns a cell of CSV. A text that a spreadsheet would take for a formula gets an apostrophe in front, as
 * spreadsheets do it themselves.
 * @param {Value} value
 */
function cell(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return String(value);
  const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

/**
 * @template Row
 * @param {Column<Row>[]} columns
 * @param {Row[]} rows
 */
function csv(columns, rows) {
  const lines = [columns.map((c) => cell(c.title)), ...rows.map((row) => columns.map((c) => cell(c.get(row))))];
  return lines.map((line) => `${line.join(",")}\r\n`).join("");
}

/**
 * @template Row
 * @param {string} name
 * @param {Column<Row>[]} columns
 * @param {() => Row[]} rows
 */
function csvButton(name, columns, rows) {
  const onclick = () => {
    const url = URL.createObjectURL(new Blob([csv(columns, rows())], { type: "text/csv" }));
    el("a", { href: url, download: `${name}.csv` }).click();
    setTimeout(() => URL.revokeObjectURL(url), 10000);
  };
  const told = { "data-csv": name, "aria-label": `CSV of ${name}` };
  return el("button", { type: "button", id: `csv-${name}`, onclick, ...told }, "CSV");
}

/**
 * Makes a table with its controls.
 * @template Row
 * @param {string} name
 * @param {string} caption
 * @param {Column<Row>[]} columns
 * @param {Row[]} rows
 * @param {View} view
 */
function table(name, caption, columns, rows, view) {
  view.tables[name] ??= { sort: null, down: false, filter: "", page: 0 };
  const mine = view.tables[name];
  const { varying, same } = apart(columns, rows);
  const body = el("tbody", null);
  const heads = el("tr", null);
  const state = el("span", { role: "status", class: "soft" });
  const turn = (/** @type {number} */ by) => {
    mine.page += by;
    fill();
  };
  const back = el("button", { type: "button", id: `back-${name}`, onclick: () => turn(-1) }, "Previous");
  const on = el("button", { type: "button", id: `on-${name}`, onclick: () => turn(1) }, "Next");
  let chosen = rows;
  const choose = () => {
    chosen = chosenRows(columns, rows, mine);
    fill();
  };
  const fill = () => {
    const pages = Math.max(1, Math.ceil(chosen.length / PAGE));
    mine.page = Math.max(0, Math.min(mine.page, pages - 1));
    const part = chosen.slice(mine.page * PAGE, (mine.page + 1) * PAGE);
    body.replaceChildren(...part.map((row) => rowOf(varying, row)));
    back.disabled = mine.page === 0;
    on.disabled = mine.page === pages - 1;
    state.textContent = many(chosen.length, "row") + (pages > 1 ? `, page ${mine.page + 1} of ${pages}` : "");
    heads.replaceChildren(...varying.map((c) => headOf(c, `sort-${name}-${columns.indexOf(c)}`, mine, choose)));
  };
  choose();
  const csv = csvButton(name, columns, () => chosen);
  const controls = rows.length > FEW ? [filterOf(name, caption, mine, choose), csv, back, on, state] : [csv, state];
  const region = { id: `scroll-${name}`, tabindex: 0, role: "region", "aria-label": `${caption}, table` };
  const whole = el("table", { "aria-label": caption }, el("thead", null, heads), body);
  const scroll = el("div", { class: "scroll", ...region }, whole);
  return el("div", { "data-table": name }, el("div", { class: "controls" }, controls), same, scroll);
}

/**
 * Returns the columns that differ between rows, and a line that says what is the same in all of them.
 * @template Row
 * @param {Column<Row>[]} columns
 * @param {Row[]} rows
 */
function apart(columns, rows) {
  const textOf = (/** @type {Column<Row>} */ c, /** @type {Row} */ row) => String((c.text ?? c.get)(row) ?? "-");
  const isSame = (/** @type {Column<Row>} */ c) => rows.every((row) => textOf(c, row) === textOf(c, rows[0]));
  if (rows.length < 2) return { varying: columns, same: null };
  const constant = columns.slice(1).filter(isSame);
  const told = constant.map((c) => {
    const text = short(textOf(c, rows[0]), 60) || "none";
    return el("li", { "data-same": c.title, "data-value": c.get(rows[0]) ?? "" }, `${c.title} ${text}`);
  });
  const same = constant.length ? el("ul", { class: "soft same", "aria-label": "the same in all rows" }, told) : null;
  return { varying: columns.filter((c) => !constant.includes(c)), same };
}

/**
 * Returns the rows that the table's filter leaves, in the order that its heads say.
 * @template Row
 * @param {Column<Row>[]} columns
 * @param {Row[]} rows
 * @param {TableState} state
 */
function chosenRows(columns, rows, state) {
  const wanted = state.filter.toLowerCase();
  const texts = (/** @type {Row} */ row) => columns.map((c) => String(c.text ? c.text(row) : c.get(row)).toLowerCase());
  const chosen = wanted ? rows.filter((row) => texts(row).some((text) => text.includes(wanted))) : [...rows];
  const by = columns.find((c) => c.title === state.sort);
  return by ? chosen.sort((a, b) => compare(by.get(a), by.get(b)) * (state.down ? -1 : 1)) : chosen;
}

/**
 * @param {string} name
 * @param {string} caption
 * @param {TableState} state
 * @param {() => void} choose
 */
function filterOf(name, caption, state, choose) {
  const input = el("input", { type: "search", autocomplete: "off", id: `filter-of-${name}` });
  input.value = state.filter;
  input.addEventListener("input", () => {
    state.filter = input.value;
    state.page = 0;
    choose();
  });
  return el("label", null, `Filter ${caption}`, input);
}

/**
 * @template Row
 * @param {Column<Row>} column
 * @param {string} id
 * @param {TableState} state
 * @param {() => void} choose
 */
function headOf(column, id, state, choose) {
  const sorted = state.sort === column.title;
  const onclick = () => {
    state.down = sorted ? !state.down : Boolean(column.number);
    state.sort = column.title;
    choose();
    document.getElementById(id)?.focus();
  };
  const mark = sorted ? (state.down ? " ▼" : " ▲") : "";
  const order = sorted ? (state.down ? "descending" : "ascending") : null;
  const button = el("button", { type: "button", id, onclick }, column.title, mark);
  return el("th", { scope: "col", class: column.number ? "number" : null, "aria-sort": order }, button);
}

/**
 * @template Row
 * @param {Column<Row>[]} columns
 * @param {Row} row
 */
function rowOf(columns, row) {
  const cells = columns.map((column) => cellOf(column, row));
  return el("tr", null, cells);
}

/**
 * @template Row
 * @param {Column<Row>} column
 * @param {Row} row
 */
function cellOf(column, row) {
  const value = column.get(row);
  const text = short((column.text ? column.text(row) : value) ?? "-");
  if (column.number) return el("td", { class: "number", "data-value": value ?? "" }, text);
  const box = el("td", null, column.opens && text.length > FOLDED ? folded(text) : text);
  // The table is as wide as its texts need, and scrolls. Otherwise a column of text is squeezed to its longest word.
  box.style.minWidth = `${Math.min(WIDEST, text.length + 4)}ch`;
  return box;
}

/** @param {string} text */
function folded(text) {
  return el("details", null, el("summary", null, clip(text, FOLDED)), text);
}

/**
 * Compares two values for sorting. What is not known comes last.
 * @param {Value} a
 * @param {Value} b
 */
function compare(a, b) {
  if (a === null || a === undefined) return b === null || b === undefined ? 0 : 1;
  if (b === null || b === undefined) return -1;
  return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
}
