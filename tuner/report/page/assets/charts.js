// Draws charts of points and lines on two axes. Start at `chart`.

const SHAPES = [
  "M-4,0A4,4 0 1 0 4,0A4,4 0 1 0 -4,0Z",
  "M-4,-4H4V4H-4Z",
  "M0,-5L5,4H-5Z",
  "M0,-5.5L5,0L0,5.5L-5,0Z",
  "M-5,-3H5L0,5Z",
  "M-1.5,-5H1.5V-1.5H5V1.5H1.5V5H-1.5V1.5H-5V-1.5H-1.5Z",
  "M-4,-2H4V2H-4Z",
];
const DASHES = ["", "7 4", "2 3", "9 3 2 3", "4 2", "12 4", "1 2"];
const MARGIN = { left: 64, right: 16, top: 24, bottom: 42 };
const INSET = 6; // between the axes and the outermost marks

/**
 * Tells whether an axis can show a value. Larger ones overflow its arithmetic, and a logarithmic axis has no zero.
 * @param {number | null} v
 * @param {boolean | undefined} log
 */
function drawable(v, log) {
  return v !== null && Math.abs(v) < 1e300 && (!log || v > 1e-300);
}

/**
 * Makes a scale that shows all of these values between two places.
 * @param {number[]} values
 * @param {boolean | undefined} log
 * @param {number} from
 * @param {number} to
 * @returns {Scale}
 */
function scale(values, log, from, to) {
  const good = values.filter((v) => drawable(v, log));
  let low = good.reduce((a, b) => Math.min(a, b), Number.POSITIVE_INFINITY);
  let high = good.reduce((a, b) => Math.max(a, b), Number.NEGATIVE_INFINITY);
  if (!good.length) [low, high] = log ? [1, 10] : [0, 1];
  if (!log && low > 0 && low < 0.5 * high) low = 0;
  // Numbers that differ only by rounding count as one: the steps between them would be lost in rounding, too.
  if (high - low <= 1e-9 * Math.max(Math.abs(low), Math.abs(high)))
    [low, high] = log ? [low / 2, high * 2] : [low - (Math.abs(low) || 1) / 2, high + (Math.abs(high) || 1) / 2];
  const f = log ? Math.log10 : (/** @type {number} */ v) => v;
  const [a, b] = [f(low), f(high)];
  const place = (/** @type {number} */ v) => from + ((f(v) - a) / (b - a)) * (to - from);
  /** @type {[number, number]} */
  const ends = [low, high];
  const has = (/** @type {number} */ v) => drawable(v, log);
  return Object.assign(place, { ticks: log ? logTicks(low, high) : ticks(low, high), has, ends });
}

/**
 * @param {number} low
 * @param {number} high
 */
function ticks(low, high) {
  const raw = (high - low) / 5;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = power * ([1, 2, 5].find((m) => m * power >= raw) ?? 10);
  const found = [];
  for (let v = Math.ceil(low / step) * step; v <= high + step * 1e-9; v += step) found.push(Number(v.toPrecision(12)));
  return found;
}

/**
 * @param {number} low
 * @param {number} high
 */
function logTicks(low, high) {
  const found = [];
  const factors = Math.log10(high / low) > 3 ? [1] : [1, 2, 5];
  for (let p = Math.floor(Math.log10(low)); p <= Math.ceil(Math.log10(high)); p++)
    for (const m of factors) {
      const v = m * 10 ** p;
      if (v >= low * 0.999 && v <= high * 1.001) found.push(Number(v.toPrecision(3)));
    }
  return found.length > 2 ? found : ticks(low, high).filter((v) => v > 0);
}

/**
 * Draws a chart.
 * @param {string} name
 * @param {string} label
 * @param {Axis} x
 * @param {Axis} y
 * @param {Series[]} series
 * @param {ChartOptions} more
 */
function chart(name, label, x, y, series, more = {}) {
  const width = widthOf();
  const height = more.height || Math.min(380, Math.max(260, width * 0.5));
  const all = series.flatMap((s) => s.points);
  const xs = [...all.map((p) => p.x), ...(more.xs ?? [])];
  const ys = [...all.map((p) => p.y), ...(more.ys ?? [])];
  const sx = scale(xs, x.log, MARGIN.left + INSET, width - MARGIN.right - INSET);
  const sy = scale(ys, y.log, height - MARGIN.bottom - INSET, MARGIN.top + INSET);
  const svg = canvas(name, width, height);
  grid(svg, sx, sy, x, y);
  more.roof?.(svg, sx, sy);
  const placed = series.map((s, i) => curve(svg, s, i, sx, sy));
  /** @type {Column<Point & { series: string }>[]} */
  const columns = [
    { title: "series", get: (r) => r.series },
    { title: x.title, get: (r) => r.x },
    { title: y.title, get: (r) => r.y },
    { title: "what", get: (r) => r.text },
  ];
  const rows = () => series.flatMap((s) => s.points.map((p) => ({ series: s.name, ...p })));
  const button = csvButton(name, columns, rows);
  return figure({ name, label, svg, placed, legend: legend(series), button, pick: more.pick });
}

/**
 * Draws the axes with their grid.
 * @param {SVGSVGElement} svg
 * @param {Scale} sx
 * @param {Scale} sy
 * @param {Axis} x
 * @param {Axis} y
 */
function grid(svg, sx, sy, x, y) {
  const { width, height } = svg.viewBox.baseVal;
  const bottom = height - MARGIN.bottom;
  const right = width - MARGIN.right;
  const show = (/** @type {Axis} */ axis, /** @type {number} */ v) => (axis.text ? axis.text(v) : digits(v, 3));
  let last = Number.NEGATIVE_INFINITY;
  for (const v of sx.ticks) {
    if (sx(v) - last < 56) continue;
    last = sx(v);
    svg.append(
      draw("line", { class: "grid", x1: last, x2: last, y1: MARGIN.top, y2: bottom }),
      draw("text", { x: last, y: bottom + 16, "text-anchor": "middle" }, show(x, v)),
    );
  }
  for (const v of sy.ticks)
    svg.append(
      draw("line", { class: "grid", x1: MARGIN.left, x2: right, y1: sy(v), y2: sy(v) }),
      draw("text", { x: MARGIN.left - 6, y: sy(v) + 4, "text-anchor": "end" }, show(y, v)),
    );
  svg.append(
    draw("path", { class: "axis", fill: "none", d: `M${MARGIN.left},${MARGIN.top}V${bottom}H${right}` }),
    draw("text", { class: "soft", x: right, y: height - 6, "text-anchor": "end" }, x.title),
    draw("text", { class: "soft", x: 2, y: MARGIN.top - 10 }, y.title),
  );
}

/**
 * @param {SVGSVGElement} svg
 * @param {Series} series
 * @param {number} index
 * @param {Scale} sx
 * @param {Scale} sy
 * @returns {Placed<Point>[]}
 */
function curve(svg, series, index, sx, sy) {
  const colour = `c${index % 7}`;
  const good = series.points.filter((p) => sx.has(p.x) && sy.has(p.y));
  const placed = good.map((p) => ({ px: sx(p.x), py: sy(p.y), text: p.text, point: p }));
  if (series.line && placed.length) {
    const rest = placed.slice(1).map((p) => (series.step ? `H${p.px}V${p.py}` : `L${p.px},${p.py}`));
    const d = `M${placed[0].px},${placed[0].py}${rest.join("")}`;
    svg.append(draw("path", { class: `path ${colour}`, "stroke-dasharray": DASHES[index % 7], d }));
  }
  if (series.marks === false) return placed;
  for (const p of placed) {
    const transform = `translate(${p.px.toFixed(1)},${p.py.toFixed(1)})`;
    const told = { "data-series": series.name, transform, "data-x": p.point.x, "data-y": p.point.y };
    svg.append(draw("path", { class: `mark ${colour}`, d: SHAPES[index % 7], ...told }));
    if (p.point.label) svg.append(labelOf(svg, p, p.point.label));
  }
  return placed;
}

/**
 * Makes the text beside a mark, where it covers no other label.
 * @param {SVGSVGElement} svg
 * @param {Placed<Point>} mark
 * @param {string} label
 */
function labelOf(svg, mark, label) {
  const wide = 7 * label.length + 2;
  const [left, right, above, below] = [mark.px - 8 - wide / 2, mark.px + 8 + wide / 2, mark.py - 9, mark.py + 17];
  const places = [
    [right, mark.py + 4],
    [left, mark.py + 4],
    [mark.px, above],
    [mark.px, below],
  ].filter(([x]) => x + wide / 2 < svg.viewBox.baseVal.width);
  const others = [...svg.querySelectorAll("[data-label]")].map((other) => ({
    x: Number(other.getAttribute("x")),
    y: Number(other.getAttribute("y")),
    wide: 7 * (other.textContent ?? "").length + 2,
  }));
  const free = places.find(([x, y]) =>
    others.every((o) => Math.abs(o.y - y) >= 12 || Math.abs(o.x - x) >= (o.wide + wide) / 2),
  );
  const [x, y] = free ?? places[0];
  return draw("text", { class: "soft", "data-label": label, x, y, "text-anchor": "middle" }, label);
}

/**
 * Makes a legend if there is more than one series.
 * @param {Series[]} series
 */
function legend(series) {
  if (series.length < 2) return null;
  const entries = series.map((s, i) => {
    const line = s.line ? draw("path", { class: "path", d: "M-13,0H13", "stroke-dasharray": DASHES[i % 7] }) : null;
    const box = { width: 26, height: 12, viewBox: "-13 -6 26 12", "aria-hidden": "true", class: `c${i % 7}` };
    const sign = draw("svg", box, line, draw("path", { class: "mark", d: SHAPES[i % 7] }));
    return el("li", null, sign, short(s.name, 60));
  });
  return el("ul", { class: "legend" }, entries);
}
