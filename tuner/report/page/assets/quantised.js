// Draws the page that `tune quantize --report` writes: what each operator costs, and quality against integers and, if
// it was measured, against latency.

/** @type {QuantisedData} */
const quantised = JSON.parse(byId("data", HTMLElement).textContent);
/** @type {View} */
const quantisedView = { device: "", op: "", text: "", task: 0, clock: "", tables: {}, again: drawQuantised };

/** @param {number | null | undefined} decibels */
function decibels(decibels) {
  return isKnown(decibels) ? `${digits(decibels, 3)} dB` : "-";
}

/** @param {QuantisedVariant} variant */
function variantText(variant) {
  const top1 = isKnown(variant.quality.top1) ? `, top-1 ${digits(variant.quality.top1)} %` : "";
  return (
    `${many(variant.in_float, "operator")} kept in float, ${percent(variant.share)} of the multiply-adds in int8: ` +
    `${decibels(variant.quality.sqnr)}${top1}${isKnown(variant.seconds) ? `, ${time(variant.seconds)}` : ""}`
  );
}

/**
 * Draws what was measured of all variants that are not all in float, and the chosen one as a series of its own.
 * @param {string} name
 * @param {string} title of the upright axis
 * @param {(quality: Quality) => number | null} value
 */
function variantChart(name, title, value) {
  const point = (/** @type {QuantisedVariant} */ v) => ({
    x: 100 * v.share,
    y: value(v.quality) ?? Number.NaN,
    text: variantText(v),
  });
  const label = `${title} against the share of multiply-adds in int8`;
  const x = { title: "multiply-adds in int8, %" };
  return chart(name, label, x, { title }, [
    { name: "measured", line: true, points: quantised.variants.filter((v) => v.in_integers > 0).map(point) },
    { name: "written", points: [point(quantised.chosen)] },
  ]);
}

/**
 * Draws what was timed: quality against latency, with the number of operators kept in float beside each point. A line
 * stands where the float network is, whose SQNR is no number.
 * @param {string} name
 * @param {string} title of the upright axis
 * @param {(quality: Quality) => number | null} value
 */
function latencyChart(name, title, value) {
  const float = quantised.float.seconds;
  if (!isKnown(float)) return null;
  const point = (/** @type {QuantisedVariant} */ v) => ({
    x: 1e3 * Number(v.seconds),
    y: value(v.quality) ?? Number.NaN,
    text: variantText(v),
    label: `${v.in_float}`,
  });
  const { chosen } = quantised;
  const others = quantised.variants.filter((v) => isKnown(v.seconds) && v.in_float !== chosen.in_float);
  const roof = (/** @type {SVGSVGElement} */ svg, /** @type {Scale} */ x, /** @type {Scale} */ y) => {
    const [at, [bottom, top]] = [x(1e3 * float), y.ends.map(y)];
    const side = at < svg.viewBox.baseVal.width / 2 ? { x: at + 6, "text-anchor": "start" } : { x: at - 6, "text-anchor": "end" };
    svg.append(
      draw("path", { class: "roof", "stroke-dasharray": "6 5", d: `M${at},${bottom}V${top}` }),
      draw("text", { class: "soft", "data-label": "float32", y: (bottom + top) / 2, ...side }, "float32"),
    );
  };
  const series = [
    { name: "mixture, with the number of operators in float", points: others.map(point) },
    { name: "written", points: [point(chosen)] },
  ];
  const x = { title: "milliseconds" };
  return chart(name, `${title} against latency`, x, { title }, series, { roof, xs: [1e3 * float] });
}

/**
 * Draws one measure of quality against latency, where that was measured, and against the share of integers.
 * @param {string} name
 * @param {string} title of the upright axis
 * @param {(quality: Quality) => number | null} value
 */
function qualityCharts(name, title, value) {
  const { float, timed_on } = quantised;
  const said = timed_on
    ? `Latencies are medians of inferences on ${timed_on}, in turns; the dashed line is the float network ` +
      `(${time(float.seconds)}), and the number beside a point is that of the operators kept in float.`
    : "Latency was not measured: the share of multiply-adds in int8 stands for it (tune quantize --measure times " +
      "networks on a device).";
  return [
    el("p", { class: "soft" }, said),
    latencyChart(`${name}-latency`, title, value),
    variantChart(name, title, value),
  ];
}

/** @returns {[string, string][]} */
function latencyFacts() {
  const { float, chosen, timed_on } = quantised;
  if (!timed_on) return [];
  return [
    ["timed on", timed_on],
    ["latency in float32", time(float.seconds)],
    ["latency as written", time(chosen.seconds)],
  ];
}

function quantisedFacts() {
  const { chosen, variants, samples } = quantised;
  const bounds = [
    isKnown(quantised.max_drop) ? `top-1 falls by at most ${quantised.max_drop} points` : "",
    isKnown(quantised.min_sqnr) ? `at least ${quantised.min_sqnr} dB` : "",
  ].filter(Boolean);
  return facts([
    ["ranges by", quantised.method],
    ["samples", `${samples.calibrated} calibrated with, ${samples.judged} judged on`],
    ["bound", bounds.join(", ") || "none"],
    ["all in int8", decibels(variants[0].quality.sqnr)],
    ["written", variantText(chosen)],
    ...latencyFacts(),
  ]);
}

function quantisedTable() {
  /** @type {Column<QuantisedOperator>[]} */
  const columns = [
    { title: "operator", get: (o) => o.name },
    { title: "type", get: (o) => o.type },
    { title: "SQNR alone, dB", number: true, get: (o) => o.sqnr_alone, text: (o) => digits(o.sqnr_alone, 3) },
    { title: "multiply-adds", number: true, get: (o) => o.multiply_adds },
    { title: "computed in", get: (o) => o.computed_in },
    { title: "why", get: (o) => o.why },
  ];
  const cost = (/** @type {QuantisedOperator} */ o) => o.sqnr_alone ?? Number.POSITIVE_INFINITY;
  const rows = [...quantised.operators].sort((a, b) => cost(a) - cost(b));
  return table("operators", "operators, the most sensitive first", columns, rows, quantisedView);
}

function drawQuantised() {
  const kind = quantised.top1_is === "accuracy" ? "right top-1, %" : "same top-1 as in float, %";
  const part = (/** @type {string} */ id, /** @type {string} */ title, /** @type {Child} */ inside) =>
    el("section", { id, tabindex: -1, "aria-labelledby": `${id}-title` }, el("h2", { id: `${id}-title` }, title), inside);
  const parts = [
    part("summary", "Summary", quantisedFacts()),
    part("noise", "Noise", qualityCharts("sqnr", "SQNR, dB", (q) => q.sqnr)),
    quantised.top1_is && part("classes", "Classes", qualityCharts("top1", kind, (q) => q.top1)),
    part("sensitivity", "Operators", quantisedTable()),
  ];
  keeping(() => byId("main", HTMLElement).replaceChildren(...parts.filter((p) => p !== null)));
}

byId("source", HTMLElement).textContent = short(quantised.model, 400);
offerThemes();
onOtherWidth(drawQuantised);
drawQuantised();
