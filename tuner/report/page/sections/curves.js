// Draws the best time so far of each searcher on a task.

function curves(data, view) {
  const tasks = chosenTasks(data, view), task = current(tasks, view);
  if (!task) return [el("p", null, "There is no task yet, or none is left by the filters.")];
  const runs = data.curves.filter((c) => c.task === task.id), byTime = view.clock === "time";
  const several = (c) => runs.filter((r) => r.searcher === c.searcher).length > 1;
  const series = runs.filter((c) => c.points.length).map((c) => {
    const name = c.searcher + (several(c) ? `, seed ${c.seed ?? "none"}` : "");
    const last = c.points[c.points.length - 1], points = [...c.points, [c.trials, c.seconds, last[2]]];
    return { name, line: true, step: true, points: points.map(([n, at, s], i) => ({ x: byTime ? at : n, y: s,
      text: `${name}: ${time(s)} after ${n} trials, ${spent(at)}${i === points.length - 1 ? " (its last trial)" : ""}` })) };
  });
  const all = runs.map((c) => ({ ...c, best: c.points.length ? c.points[c.points.length - 1][2] : null }));
  const columns = [{ title: "searcher", get: (c) => c.searcher }, { title: "seed", number: true, get: (c) => c.seed },
    { title: "trials", number: true, get: (c) => c.trials }, { title: "improvements", number: true, get: (c) => c.points.length },
    { title: "best", number: true, get: (c) => c.best, text: (c) => time(c.best) },
    { title: "at trial", number: true, get: (c) => c.points[c.points.length - 1]?.[0] },
    { title: "until its last trial", number: true, get: (c) => c.seconds, text: (c) => spent(c.seconds) }];
  const clock = chooser("Against", [["trials", "trials"], ["time", "seconds since the task's first trial"]], view.clock,
    (value) => { view.clock = value; view.again("curve-clock"); }, "curve-clock");
  const x = { title: byTime ? "seconds" : "trials", log: !byTime };
  return [
    el("div", { class: "controls" }, taskChooser(data, tasks, view, "curve-task"), clock),
    series.length ? chart("curves", `Best so far of ${short(task.text)}`, x, { title: "best so far", log: true, text: time }, series, view)
      : el("p", null, "Nothing that was verified ran yet."),
    table("searchers", "searchers of this task", columns, all, view),
  ];
}

addSection("curves", "Best so far", curves);
