// Draws the best time so far of each searcher on a task.

/** @type {Section["build"]} */
function curves(data, view) {
  const tasks = chosenTasks(data, view);
  const task = current(tasks, view);
  if (!task) return el("p", null, "There is no task yet, or none is left by the filters.");
  const runs = data.curves.filter((c) => c.task === task.id);
  const series = curveSeries(runs, view.clock === "time");
  const failed = failedSeries(runs, view.clock === "time", series);
  /** @type {[string, string][]} */
  const clocks = [
    ["trials", "trials"],
    ["time", "seconds since the task's first trial"],
  ];
  const choose = (/** @type {string} */ value) => {
    view.clock = value;
    view.again("curve-clock");
  };
  const clock = chooser("Against", clocks, view.clock, choose, "curve-clock");
  const x = view.clock === "time" ? { title: "seconds", log: false } : { title: "trials", log: true };
  const y = { title: "best so far", log: true, text: time };
  return [
    el("div", { class: "controls" }, taskChooser(data, tasks, view, "curve-task"), clock),
    series.length
      ? chart("curves", `Best so far of ${short(task.text)}`, x, y, [...series, ...failed])
      : el("p", null, "Nothing that was verified ran yet."),
    searcherTable(runs, view),
  ];
}

/**
 * @param {Curve[]} runs
 * @param {boolean} byTime
 * @returns {Series[]}
 */
function curveSeries(runs, byTime) {
  return runs.flatMap((c) => {
    const end = c.points.at(-1);
    if (!end) return [];
    const several = runs.filter((r) => r.searcher === c.searcher).length > 1;
    const name = c.searcher + (several ? `, seed ${c.seed ?? "none"}` : "");
    /** @type {Curve["points"]} */
    const steps = [...c.points, [c.trials, c.seconds, end[2]]];
    const points = steps.map(([n, at, s], i) => {
      const last = i === steps.length - 1 ? " (its last trial)" : "";
      return { x: byTime ? at : n, y: s, text: `${name}: ${time(s)} after ${n} trials, ${spent(at)}${last}` };
    });
    return [{ name, line: true, step: true, points }];
  });
}

/**
 * Returns the trials that failed, as marks above all curves.
 * @param {Curve[]} runs
 * @param {boolean} byTime
 * @param {Series[]} series
 * @returns {Series[]}
 */
function failedSeries(runs, byTime, series) {
  const y = Math.max(...series.flatMap((s) => s.points.map((p) => p.y)));
  const points = runs.flatMap((c) =>
    c.failed.map(([n, at]) => {
      const all = c.failed.length < c.failures ? ` (one of ${c.failures}, drawn evenly)` : "";
      return { x: byTime ? at : n, y, text: `${c.searcher}: trial ${n} failed, at ${spent(at)}${all}` };
    }),
  );
  return points.length ? [{ name: "failed, or not right", points }] : [];
}

/**
 * @param {Curve[]} runs
 * @param {View} view
 */
function searcherTable(runs, view) {
  const best = (/** @type {Curve} */ c) => c.points.at(-1)?.[2] ?? null;
  /** @type {Column<Curve>[]} */
  const columns = [
    { title: "searcher", get: (c) => c.searcher },
    { title: "seed", number: true, get: (c) => c.seed },
    { title: "trials", number: true, get: (c) => c.trials },
    { title: "failed", number: true, get: (c) => c.failures },
    { title: "improvements", number: true, get: (c) => c.points.length },
    { title: "best", number: true, get: best, text: (c) => time(best(c)) },
    { title: "at trial", number: true, get: (c) => c.points.at(-1)?.[0] },
    { title: "until its last trial", number: true, get: (c) => c.seconds, text: (c) => spent(c.seconds) },
  ];
  return table("searchers", "searchers of this task", columns, runs, view);
}

addSection("curves", "Best so far", curves);
