// Makes figures as SVG. The arrow keys walk through every figure. It tells what is under the pointer and exports CSV.

const REACH = 30; // units of the drawing: how near a mark the pointer has to be

/** @type {Map<string, { label: string, list: number, mark: number }>} */
const cursors = new Map(); // of each figure: its label, and the list and index of the mark that is selected

function widthOf() {
  return Math.max(300, Math.min(1040, document.documentElement.clientWidth - 40));
}

/**
 * @param {string} name
 * @param {number} width
 * @param {number} height
 */
function canvas(name, width, height) {
  return draw("svg", { viewBox: `0 0 ${width} ${height}`, width, height, "data-chart": name });
}

/**
 * Makes a figure whose marks can be walked through.
 * @template What
 * @param {Figure<What>} made
 */
function figure({ name, label, svg, placed, legend, button, pick }) {
  const readout = el("p", { class: "readout", role: "status", id: `readout-${name}` });
  const cursor = draw("circle", { class: "cursor", r: 8, visibility: "hidden" });
  const lists = placed.filter((list) => list.length);
  let at = { list: 0, mark: -1 };
  const show = (/** @type {number} */ list, /** @type {number} */ mark) => {
    at = { list, mark };
    cursors.set(name, { label, ...at });
    const p = lists[list][mark];
    put(cursor, { cx: p.px, cy: p.py, visibility: "visible" }, []);
    readout.textContent = short(p.text, 400);
  };
  svg.append(cursor);
  const was = cursors.get(name);
  if (was?.label === label && lists[was.list]?.[was.mark]) show(was.list, was.mark);
  const told = { "aria-describedby": readout.id, "aria-label": `${label}: arrow keys walk through it` };
  put(svg, { id: `chart-${name}`, tabindex: 0, role: "application", "aria-roledescription": "chart", ...told }, []);
  svg.addEventListener("keydown", (event) => {
    if (!lists.length) return;
    if (event.key === "Enter" && pick && at.mark >= 0) pick(lists[at.list][at.mark].point);
    const move = MOVES[event.key];
    if (!move) return;
    event.preventDefault();
    const list = Math.max(0, Math.min(lists.length - 1, at.list + move[0]));
    show(list, Math.max(0, Math.min(lists[list].length - 1, at.mark + move[1])));
  });
  svg.addEventListener("pointermove", (event) => {
    const hit = nearest(svg, lists, event);
    if (hit) show(hit.list, hit.mark);
  });
  svg.addEventListener("click", (event) => {
    const hit = nearest(svg, lists, event);
    if (hit && pick) pick(lists[hit.list][hit.mark].point);
  });
  return el("figure", null, legend, svg, readout, button);
}

/** @type {Record<string, [number, number]>} */
const MOVES = {
  ArrowRight: [0, 1],
  ArrowLeft: [0, -1],
  ArrowDown: [1, 0],
  ArrowUp: [-1, 0],
  Home: [0, -1e9],
  End: [0, 1e9],
};

/**
 * Returns the mark that is nearest to the pointer, null if none is near.
 * @template What
 * @param {SVGSVGElement} svg
 * @param {Placed<What>[][]} lists
 * @param {MouseEvent} event
 */
function nearest(svg, lists, event) {
  const box = svg.getBoundingClientRect();
  const factor = svg.viewBox.baseVal.width / box.width;
  const x = (event.clientX - box.left) * factor;
  const y = (event.clientY - box.top) * factor;
  let least = REACH ** 2;
  /** @type {{ list: number, mark: number } | null} */
  let hit = null;
  for (const [list, marks] of lists.entries())
    for (const [mark, p] of marks.entries()) {
      const distance = (p.px - x) ** 2 + (p.py - y) ** 2;
      if (distance >= least) continue;
      least = distance;
      hit = { list, mark };
    }
  return hit;
}

/**
 * Draws horizontal bars.
 * @param {string} name
 * @param {string} label
 * @param {Bar[]} rows
 * @param {string} unit
 */
function bars(name, label, rows, unit) {
  const width = widthOf();
  const left = Math.min(360, width * 0.42);
  const row = 22;
  const svg = canvas(name, width, rows.length * row + 6);
  const most = rows.reduce((a, r) => Math.max(a, r.value), 0) || 1;
  const letters = Math.floor(left / 7.2);
  const longest = rows.reduce((a, r) => Math.max(a, r.text.length), 0);
  const room = Math.min(width - left - 20, Math.max(130, 7 * longest));
  const placed = rows.map((r, i) => {
    const long = ((width - left - room) * r.value) / most;
    const y = i * row + 3;
    const told = { "data-name": short(r.name), "data-value": r.value };
    svg.append(
      draw("text", { x: left - 6, y: y + 14, "text-anchor": "end" }, clip(r.name, letters)),
      draw("rect", { class: "mark c0", x: left, y, width: Math.max(1, long), height: row - 5, ...told }),
      draw("text", { x: left + long + 5, y: y + 14 }, r.text),
    );
    return { px: left + long, py: y + 8, text: `${r.name}: ${r.text}`, point: r };
  });
  /** @type {Column<Bar>[]} */
  const columns = [
    { title: "name", get: (r) => r.name },
    { title: unit, get: (r) => r.value },
  ];
  return figure({ name, label, svg, placed: [placed], button: csvButton(name, columns, () => rows) });
}

/**
 * Draws the best seconds for each pair of two knobs' values.
 * @param {string} name
 * @param {string} label
 * @param {HeatAxis} across
 * @param {HeatAxis} down
 * @param {HeatCell[]} cells
 */
function heat(name, label, across, down, cells) {
  const width = Math.min(widthOf(), 90 + across.values.length * 80);
  const left = 90;
  const size = (width - left - 8) / across.values.length;
  const row = 30;
  const svg = canvas(name, width, down.values.length * row + 46);
  for (const [i, v] of across.values.entries())
    svg.append(draw("text", { x: left + (i + 0.5) * size, y: 32, "text-anchor": "middle" }, clip(v, size / 7)));
  for (const [j, v] of down.values.entries())
    svg.append(draw("text", { x: left - 6, y: 46 + j * row + 19, "text-anchor": "end" }, clip(v, 11)));
  const title = `across: ${clip(across.name, 24)}; down: ${clip(down.name, 24)}`;
  svg.append(draw("text", { class: "soft", x: left, y: 14 }, title));
  const logs = cells.map((c) => Math.log(c.value));
  const [low, high] = [Math.min(...logs), Math.max(...logs)];
  const placed = cells.map((c) => {
    const part = high > low ? (Math.log(c.value) - low) / (high - low) : 0;
    const [x, y] = [left + c.i * size, 42 + c.j * row];
    const box = { x: x + 1, y: y + 1, width: size - 2, height: row - 2 };
    svg.append(draw("rect", { ...box, fill: shade(part), "data-value": c.value }));
    const place = { x: x + size / 2, y: y + 20, "text-anchor": "middle", class: part < 0.5 ? "dark" : "light" };
    if (size > 44) svg.append(draw("text", place, digits(c.value * 1e6, 3)));
    const pair = `${across.name}=${across.values[c.i]}, ${down.name}=${down.values[c.j]}`;
    const text = `${pair}: best ${time(c.value)} of ${c.count} trials`;
    return { px: x + size / 2, py: y + row / 2, text, point: c };
  });
  /** @type {Column<HeatCell>[]} */
  const columns = [
    { title: across.name, get: (c) => across.values[c.i] },
    { title: down.name, get: (c) => down.values[c.j] },
    { title: "best seconds", get: (c) => c.value },
    { title: "trials", get: (c) => c.count },
  ];
  return figure({ name, label, svg, placed: [placed], button: csvButton(name, columns, () => cells) });
}

/**
 * Returns a colour between yellow (fast) and dark violet (slow). Lightness alone tells the colours apart.
 * @param {number} part between 0 and 1
 */
function shade(part) {
  const stops = [
    [253, 231, 37],
    [94, 201, 98],
    [33, 145, 140],
    [59, 82, 139],
    [68, 1, 84],
  ];
  const at = Math.min(3, Math.floor(part * 4));
  const rest = part * 4 - at;
  return `rgb(${stops[at].map((v, i) => Math.round(v + (stops[at + 1][i] - v) * rest)).join(",")})`;
}
