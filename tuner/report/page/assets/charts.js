// Draws charts as SVG. The arrow keys walk through every chart, which tells what is under the pointer and exports CSV.

const SHAPES = ["M-4,0A4,4 0 1 0 4,0A4,4 0 1 0 -4,0Z", "M-4,-4H4V4H-4Z", "M0,-5L5,4H-5Z", "M0,-5.5L5,0L0,5.5L-5,0Z",
  "M-5,-3H5L0,5Z", "M-1.5,-5H1.5V-1.5H5V1.5H1.5V5H-1.5V1.5H-5V-1.5H-1.5Z", "M-4,-2H4V2H-4Z"];
const DASHES = ["", "7 4", "2 3", "9 3 2 3", "4 2", "12 4", "1 2"];
const MARGIN = { left: 64, right: 16, top: 24, bottom: 42 };
const INSET = 6; // between the axes and the outermost marks

function widthOf() {
  return Math.max(300, Math.min(1040, document.documentElement.clientWidth - 40));
}

// Tells whether an axis can show a value. Larger ones overflow its arithmetic, and a logarithmic axis has no zero.
function drawable(v, log) {
  return v !== null && Math.abs(v) < 1e300 && (!log || v > 1e-300);
}

function scale(values, log, from, to) {
  const good = values.filter((v) => drawable(v, log));
  let low = good.reduce((a, b) => Math.min(a, b), Infinity), high = good.reduce((a, b) => Math.max(a, b), -Infinity);
  if (!good.length) [low, high] = log ? [1, 10] : [0, 1];
  if (!log && low > 0 && low < 0.5 * high) low = 0;
  // Numbers that differ only by rounding count as one: the steps between them would be lost in rounding, too.
  if (high - low <= 1e-9 * Math.max(Math.abs(low), Math.abs(high)))
    [low, high] = log ? [low / 2, high * 2] : [low - (Math.abs(low) || 1) / 2, high + (Math.abs(high) || 1) / 2];
  const f = log ? Math.log10 : (v) => v, a = f(low), b = f(high);
  const place = (v) => from + ((f(v) - a) / (b - a)) * (to - from);
  place.ticks = log ? logTicks(low, high) : ticks(low, high);
  place.has = (v) => drawable(v, log);
  place.ends = [low, high];
  return place;
}

function ticks(low, high) {
  const raw = (high - low) / 5, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw);
  const found = [];
  for (let v = Math.ceil(low / step) * step; v <= high + step * 1e-9; v += step) found.push(Number(v.toPrecision(12)));
  return found;
}

function logTicks(low, high) {
  const found = [], many = Math.log10(high / low) > 3 ? [1] : [1, 2, 5];
  for (let p = Math.floor(Math.log10(low)); p <= Math.ceil(Math.log10(high)); p++)
    for (const m of many) if (m * 10 ** p >= low * 0.999 && m * 10 ** p <= high * 1.001) found.push(Number((m * 10 ** p).toPrecision(3)));
  return found.length > 2 ? found : ticks(low, high).filter((v) => v > 0);
}

// Draws a chart. A series is { name, points: [{ x, y, text }], line, step, marks }; an axis is { title, log, text }.
// `more.roof(svg, x, y)` draws more before the points are drawn.
function chart(name, label, x, y, series, view, more = {}) {
  const width = widthOf(), height = more.height || Math.min(380, Math.max(260, width * 0.5));
  const all = series.flatMap((s) => s.points);
  const sx = scale([...all.map((p) => p.x), ...(more.xs || [])], x.log, MARGIN.left + INSET, width - MARGIN.right - INSET);
  const sy = scale([...all.map((p) => p.y), ...(more.ys || [])], y.log, height - MARGIN.bottom - INSET, MARGIN.top + INSET);
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, width, height, "data-chart": name });
  axes(svg, sx, sy, x, y, width, height);
  if (more.roof) more.roof(svg, sx, sy);
  const placed = series.map((s, i) => curve(svg, s, i, sx, sy));
  const columns = [{ title: "series", get: (r) => r.series }, { title: x.title, get: (r) => r.x }, { title: y.title, get: (r) => r.y },
    { title: "what", get: (r) => r.text }];
  const rows = () => series.flatMap((s) => s.points.map((p) => ({ series: s.name, ...p })));
  return figure(name, label, svg, placed, legend(series), csvButton(name, columns, rows), more.pick);
}

function axes(svg, sx, sy, x, y, width, height) {
  const bottom = height - MARGIN.bottom, show = (axis) => axis.text || ((v) => digits(v, 3));
  let last = -Infinity;
  for (const v of sx.ticks) {
    if (sx(v) - last < 56) continue;
    last = sx(v);
    svg.append(draw("line", { class: "grid", x1: sx(v), x2: sx(v), y1: MARGIN.top, y2: bottom }),
      draw("text", { x: sx(v), y: bottom + 16, "text-anchor": "middle" }, show(x)(v)));
  }
  for (const v of sy.ticks)
    svg.append(draw("line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: sy(v), y2: sy(v) }),
      draw("text", { x: MARGIN.left - 6, y: sy(v) + 4, "text-anchor": "end" }, show(y)(v)));
  svg.append(draw("path", { class: "axis", fill: "none", d: `M${MARGIN.left},${MARGIN.top}V${bottom}H${width - MARGIN.right}` }),
    draw("text", { class: "soft", x: width - MARGIN.right, y: height - 6, "text-anchor": "end" }, x.title),
    draw("text", { class: "soft", x: 2, y: MARGIN.top - 10 }, y.title));
}

function curve(svg, series, index, sx, sy) {
  const colour = `c${(series.colour ?? index) % 7}`;
  const good = series.points.filter((p) => sx.has(p.x) && sy.has(p.y));
  const placed = good.map((p) => ({ px: sx(p.x), py: sy(p.y), text: p.text, point: p }));
  if (series.line && placed.length) {
    const rest = placed.slice(1).map((p) => (series.step ? `H${p.px}V${p.py}` : `L${p.px},${p.py}`)).join("");
    svg.append(draw("path", { class: `path ${colour}`, "stroke-dasharray": DASHES[index % 7], d: `M${placed[0].px},${placed[0].py}${rest}` }));
  }
  if (series.marks !== false)
    for (const p of placed)
      svg.append(draw("path", { class: `mark ${colour}`, d: SHAPES[(series.colour ?? index) % 7], "data-series": series.name,
        transform: `translate(${p.px.toFixed(1)},${p.py.toFixed(1)})`, "data-x": p.point.x, "data-y": p.point.y }));
  return placed;
}

function legend(series) {
  if (series.length < 2) return null;
  return el("ul", { class: "legend" }, series.map((s, i) => el("li", null,
    draw("svg", { width: 26, height: 12, viewBox: "-13 -6 26 12", "aria-hidden": "true", class: `c${(s.colour ?? i) % 7}` },
      s.line ? draw("path", { class: "path", d: "M-13,0H13", "stroke-dasharray": DASHES[i % 7] }) : null,
      draw("path", { class: "mark", d: SHAPES[(s.colour ?? i) % 7] })), short(s.name, 60))));
}

const cursors = new Map(); // of each figure: its label, and the list and index of the mark that is selected

// Makes a figure whose marks can be walked through. `placed` has lists of { px, py, text, point }.
function figure(name, label, svg, placed, key, button, pick) {
  const readout = el("p", { class: "readout", role: "status", id: `readout-${name}` });
  const cursor = draw("circle", { class: "cursor", r: 8, visibility: "hidden" });
  const lists = placed.filter((list) => list.length);
  let at = [0, -1];
  const show = (list, i) => {
    at = [list, i];
    cursors.set(name, { label, at });
    const p = lists[list][i];
    put(cursor, { cx: p.px, cy: p.py, visibility: "visible" }, []);
    readout.textContent = short(p.text, 400);
  };
  svg.append(cursor);
  const was = cursors.get(name);
  if (was?.label === label && lists[was.at[0]]?.[was.at[1]]) show(...was.at);
  put(svg, { id: `chart-${name}`, tabindex: 0, role: "application", "aria-roledescription": "chart", "aria-describedby": readout.id,
    "aria-label": `${label}: arrow keys walk through it` }, []);
  svg.addEventListener("keydown", (event) => {
    if (!lists.length) return;
    const moves = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0], Home: [0, -1e9], End: [0, 1e9] };
    if (event.key === "Enter" && pick && at[1] >= 0) return pick(lists[at[0]][at[1]].point);
    const move = moves[event.key];
    if (!move) return;
    event.preventDefault();
    const list = Math.max(0, Math.min(lists.length - 1, at[0] + move[0]));
    show(list, Math.max(0, Math.min(lists[list].length - 1, at[1] + move[1])));
  });
  const nearest = (event) => {
    const box = svg.getBoundingClientRect(), factor = svg.viewBox.baseVal.width / box.width;
    const x = (event.clientX - box.left) * factor, y = (event.clientY - box.top) * factor;
    let best = [900, null];
    lists.forEach((list, l) => list.forEach((p, i) => {
      const d = (p.px - x) ** 2 + (p.py - y) ** 2;
      if (d < best[0]) best = [d, [l, i]];
    }));
    return best[1];
  };
  svg.addEventListener("pointermove", (event) => { const hit = nearest(event); if (hit) show(...hit); });
  svg.addEventListener("click", (event) => { const hit = nearest(event); if (hit && pick) pick(lists[hit[0]][hit[1]].point); });
  return el("figure", null, key, svg, readout, button);
}

// Draws horizontal bars. A row is { name, value, text }.
function bars(name, label, rows, unit) {
  const width = widthOf(), left = Math.min(360, width * 0.42), row = 22, height = rows.length * row + 6;
  const most = rows.reduce((a, r) => Math.max(a, r.value), 0) || 1;
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, width, height, "data-chart": name });
  const letters = Math.floor(left / 7.2);
  const placed = rows.map((r, i) => {
    const long = ((width - left - 130) * r.value) / most, y = i * row + 3;
    svg.append(draw("text", { x: left - 6, y: y + 14, "text-anchor": "end" }, clip(r.name, letters)),
      draw("rect", { class: "mark c0", x: left, y, width: Math.max(1, long), height: row - 5, "data-name": short(r.name), "data-value": r.value }),
      draw("text", { x: left + long + 5, y: y + 14 }, r.text));
    return { px: left + long, py: y + 8, text: `${r.name}: ${r.text}`, point: r };
  });
  const columns = [{ title: "name", get: (r) => r.name }, { title: unit, get: (r) => r.value }];
  return figure(name, label, svg, [placed], null, csvButton(name, columns, () => rows));
}

function clip(text, most) {
  const all = shown(text);
  return all.length <= most ? all : `${all.slice(0, Math.max(1, most - 1))}…`;
}

// Draws the best seconds for each pair of two knobs' values. A cell is { i, j, value, count }.
function heat(name, label, across, down, cells) {
  const width = Math.min(widthOf(), 90 + across.values.length * 80), left = 90, size = (width - left - 8) / across.values.length;
  const row = 30, height = down.values.length * row + 46;
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, width, height, "data-chart": name });
  const logs = cells.map((c) => Math.log(c.value)), low = Math.min(...logs), high = Math.max(...logs);
  across.values.forEach((v, i) => svg.append(draw("text", { x: left + (i + 0.5) * size, y: 32, "text-anchor": "middle" }, clip(v, size / 7))));
  down.values.forEach((v, j) => svg.append(draw("text", { x: left - 6, y: 46 + j * row + 19, "text-anchor": "end" }, clip(v, 11))));
  svg.append(draw("text", { class: "soft", x: left, y: 14 }, `across: ${clip(across.name, 24)}; down: ${clip(down.name, 24)}`));
  const placed = cells.map((c) => {
    const part = high > low ? (Math.log(c.value) - low) / (high - low) : 0, x = left + c.i * size, y = 42 + c.j * row;
    svg.append(draw("rect", { x: x + 1, y: y + 1, width: size - 2, height: row - 2, fill: shade(part), "data-value": c.value }));
    if (size > 44) svg.append(draw("text", { x: x + size / 2, y: y + 20, "text-anchor": "middle",
      class: part < 0.5 ? "dark" : "light" }, digits(c.value * 1e6, 3)));
    const text = `${across.name}=${across.values[c.i]}, ${down.name}=${down.values[c.j]}: best ${time(c.value)} of ${c.count} trials`;
    return { px: x + size / 2, py: y + row / 2, text, point: c };
  });
  const columns = [{ title: across.name, get: (c) => across.values[c.i] }, { title: down.name, get: (c) => down.values[c.j] },
    { title: "best seconds", get: (c) => c.value }, { title: "trials", get: (c) => c.count }];
  return figure(name, label, svg, [placed], null, csvButton(name, columns, () => cells));
}

// Returns a colour between yellow (fast) and dark violet (slow). Lightness alone tells the colours apart.
function shade(part) {
  const stops = [[253, 231, 37], [94, 201, 98], [33, 145, 140], [59, 82, 139], [68, 1, 84]];
  const at = Math.min(3, Math.floor(part * 4)), rest = part * 4 - at;
  return `rgb(${stops[at].map((v, i) => Math.round(v + (stops[at + 1][i] - v) * rest)).join(",")})`;
}
