// Shows what came of it: latencies beside those of peers, and how the time has fallen while tuning went on.

/** @type {Section["build"]} */
function answer(data, view) {
  const falls = data.falls.filter((f) => view.device === "" || Number(view.device) === f.device);
  const bench = (/** @type {Module} */ m, /** @type {number} */ i) =>
    m.bench && [el("h3", null, `Latency of ${short(m.model, 60)}`), latencyBars(m.bench, i)];
  return [data.modules.map(bench), falls.length ? fallChart(data, falls) : null];
}

/**
 * Draws the median latency of every contender, and how many times ours it is.
 * @param {Bench} bench
 * @param {number} id
 */
function latencyBars(bench, id) {
  const [ours] = bench.contenders;
  const rows = bench.contenders.map((c) => {
    const beside = c === ours ? "" : `, ${digits(c.median_seconds / ours.median_seconds)}x`;
    return { name: c.version, value: c.median_seconds, text: `${time(c.median_seconds)}${beside}` };
  });
  return bars(`latency-${id}`, `Latency, ${many(bench.threads, "thread")}, alternating`, rows, "seconds");
}

/**
 * Draws how the time of all operators together has fallen.
 * @param {Data} data
 * @param {Fall[]} falls
 */
function fallChart(data, falls) {
  const series = falls.map((f) => {
    const name = `${f.name}, ${data.devices[f.device].name}`;
    const points = f.points.map(([at, s]) => ({ x: at, y: s, text: `${name}: ${time(s)} after ${spent(at)}` }));
    return { name, line: true, step: true, marks: false, points };
  });
  const last = falls.map(({ points }) => `${time(points[0][1])} to ${time(points.at(-1)?.[1])}`).join("; ");
  const said = `From the templates' first configs to the best ones: ${last}. Pauses of more than two minutes are left out.`;
  return [
    el("h3", null, "The operators' time together"),
    el("p", { class: "soft" }, said),
    chart("falls", "The operators' time together", { title: "seconds of tuning" }, { title: "time", text: time }, series),
  ];
}

addSections((data) => {
  const known = data.falls.length || data.modules.some((m) => m.bench);
  return known ? [{ id: "answer", title: "Result", build: answer }] : [];
});
