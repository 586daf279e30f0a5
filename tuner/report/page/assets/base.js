"use strict";
// Makes elements and texts. Whatever comes from a database or a module is data, and is shown only as text.

const SVG = "http://www.w3.org/2000/svg";
const LONGEST = 160; // characters of a name that are shown; the CSV has all

/**
 * Sets attributes of a node and appends children. An attribute whose name begins with "on" is a listener. Whatever is
 * null, undefined or false is left out.
 * @template {Element} N
 * @param {N} node
 * @param {Attributes | null} attributes
 * @param {Child[]} children
 * @returns {N}
 */
function put(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    if (Array.isArray(child)) put(node, null, child);
    else node.append(child instanceof Node ? child : document.createTextNode(shown(String(child))));
  }
  return node;
}

/**
 * Makes an element of HTML.
 * @template {keyof HTMLElementTagNameMap} T
 * @param {T} tag
 * @param {Attributes | null} attributes
 * @param {Child[]} children
 */
function el(tag, attributes, ...children) {
  return put(document.createElement(tag), attributes, children);
}

/**
 * Makes an element of SVG.
 * @template {keyof SVGElementTagNameMap} T
 * @param {T} tag
 * @param {Attributes | null} attributes
 * @param {Child[]} children
 */
function draw(tag, attributes, ...children) {
  return put(document.createElementNS(SVG, tag), attributes, children);
}

/**
 * Returns the element with an id. Throws an Error if there is none of this type.
 * @template {HTMLElement} E
 * @param {string} id
 * @param {new () => E} type
 * @returns {E}
 */
function byId(id, type) {
  const node = document.getElementById(id);
  if (!(node instanceof type)) throw new Error(`the page has no ${type.name} ${id}`);
  return node;
}

// These characters are invisible or change the direction of text: all but tabs and new lines are written as escapes.
const UNSEEN = /(?![\t\n])[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu;

/** @param {string} text */
function shown(text) {
  return text.replace(UNSEEN, (c) => {
    const code = Number(c.codePointAt(0)).toString(16);
    return code.length > 4 ? `\\u{${code}}` : `\\u${code.padStart(4, "0")}`;
  });
}

/**
 * @param {string | number} text
 * @param {number} most characters
 */
function short(text, most = LONGEST) {
  const all = shown(String(text));
  return all.length <= most ? all : `${all.slice(0, most)}… (${all.length.toLocaleString("en")} characters)`;
}

/**
 * Cuts a text where there is no room to tell how long it is.
 * @param {string} text
 * @param {number} most characters
 */
function clip(text, most) {
  const all = shown(text);
  return all.length <= most ? all : `${all.slice(0, Math.max(1, most - 1))}…`;
}

/**
 * @param {number | null | undefined} number
 * @returns {number is number}
 */
function isKnown(number) {
  return number !== null && number !== undefined && Number.isFinite(number);
}

/**
 * @param {number | null | undefined} number
 * @param {number} places
 */
function digits(number, places = 3) {
  if (!isKnown(number)) return "-";
  const size = Math.abs(number);
  if (size && size < 1e-4) return number.toExponential(places - 1);
  return size >= 10 ** places ? Math.round(number).toLocaleString("en") : String(Number(number.toPrecision(places)));
}

/** @param {number | null} ratio of a time to the time that it is compared with */
function timesText(ratio) {
  if (!isKnown(ratio)) return "-";
  return ratio >= 1 ? `${ratio.toFixed(2)} times slower` : `${(1 / ratio).toFixed(2)} times faster`;
}

/** @param {number | null | undefined} seconds */
function time(seconds) {
  if (!isKnown(seconds)) return "-";
  const [unit, factor] = seconds >= 1 ? ["s", 1] : seconds >= 1e-3 ? ["ms", 1e3] : ["us", 1e6];
  return `${digits(seconds * factor)} ${unit}`;
}

/**
 * Returns a time that a person waits for.
 * @param {number} seconds
 */
function spent(seconds) {
  const [unit, factor] = seconds >= 5400 ? ["h", 3600] : seconds >= 90 ? ["min", 60] : ["s", 1];
  return `${digits(seconds / factor, 3)} ${unit}`;
}

/** @param {number | null | undefined} bytes */
function mebibytes(bytes) {
  return isKnown(bytes) ? `${digits(bytes / 2 ** 20, 3)} MiB` : "-";
}

/**
 * @param {number | null | undefined} speed operations a second
 * @param {string} precision of the numbers that they are made with
 */
function rate(speed, precision) {
  return speed ? `${digits(speed / 1e9, 3)} ${precision === "int8" ? "Gop/s" : "GF/s"}` : "-";
}

/**
 * @param {number} count
 * @param {string} what one of them
 */
function many(count, what) {
  return `${count.toLocaleString("en")} ${what}${count === 1 ? "" : "s"}`;
}

/** @param {number | null | undefined} share */
function percent(share) {
  return isKnown(share) ? `${digits(100 * share, 3)} %` : "-";
}

/** @param {number} moment */
function when(moment) {
  return `${new Date(moment * 1000).toISOString().slice(0, 19).replace("T", " ")} UTC`;
}

/**
 * Makes a list of choices. `options` are values and their texts; `change` is called with the value that is chosen.
 * @param {string} title
 * @param {[string | number, string][]} options
 * @param {string | number} value
 * @param {(value: string) => void} change
 * @param {string} id
 */
function chooser(title, options, value, change, id) {
  const texts = options.map(([v, text]) => el("option", { value: v }, short(text, 100)));
  const select = el("select", { id }, texts);
  select.value = String(value);
  select.addEventListener("change", () => change(select.value));
  return el("label", null, title, select);
}

/** @param {[string, string | number][]} pairs */
function facts(pairs) {
  const list = pairs.map(([name, value]) => el("div", null, el("dt", null, name), el("dd", null, value)));
  return el("dl", { class: "facts" }, list);
}

/**
 * Draws a part of the page anew and restores the user's state: focus, selection in a field, scroll positions, and open
 * details. Whatever can have the focus has an id that stays. `otherwise` is the id of what gets the focus if the
 * element that had it is gone.
 * @param {() => void} redraw
 * @param {string | null} [focus]
 * @param {string} [otherwise]
 */
function keeping(redraw, focus, otherwise) {
  const active = document.activeElement;
  const held = focus || active?.id;
  const home = active?.closest("section[id]")?.id;
  const field = active instanceof HTMLInputElement ? active : null;
  const scrolled = [...document.querySelectorAll(".scroll[id], pre[id]")];
  /** @type {[string, number, number][]} */
  const places = scrolled.map((n) => [n.id, n.scrollLeft, n.scrollTop]);
  const open = [...document.querySelectorAll("details[open]")].map((n) => n.id);
  const top = window.scrollY;
  const [from, to] = [field?.selectionStart ?? null, field?.selectionEnd ?? null];
  redraw();
  for (const id of open) document.getElementById(id)?.setAttribute("open", "");
  for (const [id, left, down] of places) document.getElementById(id)?.scrollTo(left, down);
  const next = held && [held, otherwise, home].map((id) => (id ? document.getElementById(id) : null)).find(canFocus);
  if (next && next !== document.activeElement) {
    next.focus({ preventScroll: true });
    if (field && next instanceof HTMLInputElement && next.id === field.id) next.setSelectionRange(from, to);
  }
  window.scrollTo(0, top);
}

/** @param {HTMLElement | null} node */
function canFocus(node) {
  return node !== null && !(node instanceof HTMLButtonElement && node.disabled);
}

/** @param {string} name */
function theme(name) {
  document.documentElement.dataset.theme = name;
  byId("theme", HTMLElement).textContent = name === "dark" ? "Light" : "Dark";
}

/** Begins with the theme that the system prefers, and lets the page's button change it. */
function offerThemes() {
  theme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  byId("theme", HTMLElement).addEventListener("click", () =>
    theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"),
  );
}

/**
 * Calls a function whenever the page has another width.
 * @param {() => void} redraw
 */
function onOtherWidth(redraw) {
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === width) return;
    width = innerWidth;
    redraw();
  });
}
