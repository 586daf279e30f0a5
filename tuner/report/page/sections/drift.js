// Draws when trials were measured, and how the times of repeated ones changed.

/** @type {Section["build"]} */
function drift(data, view) {
  const chosen = data.drift.filter((d) => view.device === "" || d.device === Number(view.device));
  if (!chosen.length) return el("p", null, "There is no trial yet.");
  return chosen.map((d) => driftOf(d, short(data.devices[d.device].name)));
}

/**
 * @param {Drift} d
 * @param {string} name
 */
function driftOf(d, name) {
  const marked =
    `${d.marked.toLocaleString("en")} trials are marked: measured while the device did not keep its speed (its ` +
    "system slowed it down, or a kernel that never changes changed its time by more than a tenth). ";
  const span = `From ${when(d.began)} to ${when(d.ended)}.`;
  return [
    el("h3", null, name),
    el("p", { class: d.marked ? "warn" : "soft" }, marked, span),
    trialsOverTime(d, name),
    measuredAgain(d, name),
  ];
}

/**
 * @param {Drift} d
 * @param {string} name
 */
function trialsOverTime(d, name) {
  const step = (d.ended - d.began) / d.bins.length || 1;
  const series = (/** @type {string} */ title, /** @type {0 | 1} */ which, /** @type {string} */ what) => {
    const points = d.bins.map((bin, i) => {
      const text = `${when(d.began + i * step)}: ${bin[which]} ${what}`;
      return { x: i * step, y: (60 * bin[which]) / step, text };
    });
    return { name: title, line: true, marks: false, points };
  };
  const lines = [series("all", 0, "trials"), series("marked", 1, "marked trials")];
  const x = { title: "seconds since the first trial" };
  return chart(`rate-${d.device}`, `Trials a minute on ${name}`, x, { title: "trials a minute" }, lines, {
    height: 220,
  });
}

/**
 * @param {Drift} d
 * @param {string} name
 */
function measuredAgain(d, name) {
  const series = (/** @type {string} */ title, /** @type {0 | 1} */ marked) => {
    const points = d.repeats
      .filter((r) => r[2] === marked)
      .map(([at, ratio]) => {
        const text = `${when(d.began + at)}: ${digits(ratio, 3)} times the config's first measurement`;
        return { x: at, y: ratio, text: text + (marked ? ", marked" : "") };
      });
    return { name: title, points };
  };
  const repeats = [series("not marked", 0), series("marked", 1)].filter((s) => s.points.length);
  if (!repeats.length) return null;
  const said = `${d.repeated.toLocaleString("en")} times a config was measured again: over the first time it was.`;
  const x = { title: "seconds since the first trial" };
  const y = { title: "times its first measurement", log: true };
  const more = { ys: [0.9, 1.1], height: 260 };
  return [
    el("p", { class: "soft" }, said),
    chart(`drift-${d.device}`, `Measured again on ${name}`, x, y, repeats, more),
  ];
}

addSection("drift", "Drift and clocks", drift);
