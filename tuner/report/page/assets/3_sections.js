// Makes the sections about the database. Each function takes the data and the view, and returns what is shown.

// Tells whether a row, which has a device, an operator and a text, passes the filters.
function passes(row, view) {
  return (view.device === "" || row.device === Number(view.device)) && (view.op === "" || row.op === view.op)
    && row.text.toLowerCase().includes(view.text.toLowerCase());
}

function chosenTasks(data, view) {
  return data.tasks.map((task, place) => ({ ...task, id: place, row: task.id })).filter((t) => passes(t, view));
}

function gflops(task) {
  return task.flop && task.best ? task.flop / task.best.seconds : null;
}

function current(tasks, view) {
  return tasks.find((t) => t.id === view.task) || tasks[0];
}

function taskChooser(data, tasks, view, id) {
  const options = tasks.map((t) => [t.id, `${clip(t.text, 70)}, ${clip(data.devices[t.device].name, 30)}`]);
  const change = (value) => { view.task = Number(value); view.again(id); };
  return chooser("Task", options, current(tasks, view).id, change, id);
}

function total(tasks, get) {
  return tasks.reduce((sum, t) => sum + (get(t) || 0), 0);
}

function overview(data, view) {
  const tasks = chosenTasks(data, view);
  const columns = [
    { title: "task", get: (t) => t.text },
    { title: "device", get: (t) => data.devices[t.device].name },
    { title: "best", number: true, get: (t) => t.best?.seconds, text: (t) => time(t.best?.seconds) },
    { title: "first", number: true, get: (t) => t.first, text: (t) => time(t.first) },
    { title: "gain", number: true, get: (t) => t.best && t.first && t.first / t.best.seconds,
      text: (t) => (t.best && t.first ? `${digits(t.first / t.best.seconds, 3)}x` : "-") },
    { title: "speed", number: true, get: gflops, text: (t) => rate(gflops(t)) },
    { title: "template", get: (t) => t.best?.template },
    { title: "error", number: true, get: (t) => t.best?.error, text: (t) => digits(t.best?.error, 2) },
    { title: "configs", number: true, get: (t) => t.configs },
    { title: "trials", number: true, get: (t) => t.trials },
    { title: "failures", number: true, get: (t) => t.failures },
    { title: "marked", get: (t) => (t.best?.marked ? "yes" : "") },
    { title: "clocks", get: (t) => t.best?.condition ?? "" },
    { title: "knobs", get: (t) => t.best?.knobs },
  ];
  return [
    facts([["tasks", tasks.length.toLocaleString("en")], ["trials", total(tasks, (t) => t.trials).toLocaleString("en")],
      ["failures", total(tasks, (t) => t.failures).toLocaleString("en")], ["time spent", spent(total(tasks, (t) => t.effort))]]),
    el("p", { class: "soft" }, "Best: the fastest verified config, by its latest measurement; first: the first config that ran, ",
      "before tuning. Speeds count the direct algorithm's operations."),
    table("tasks", "tasks", columns, tasks, view),
  ];
}

function spent(seconds) {
  return seconds >= 5400 ? `${digits(seconds / 3600, 3)} h` : seconds >= 90 ? `${digits(seconds / 60, 3)} min` : `${digits(seconds, 3)} s`;
}

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

function effort(data, view) {
  const tasks = chosenTasks(data, view).filter((t) => t.effort).sort((a, b) => b.effort - a.effort);
  if (!tasks.length) return [el("p", null, "This database has no times of sessions (imported trials bring none).")];
  const rest = (t) => Math.max(0, t.effort - t.building - t.running), whole = total(tasks, (t) => t.effort);
  const share = (get) => percent(total(tasks, get) / whole);
  const rows = tasks.slice(0, 15).map((t) => ({ name: `${t.text}, ${data.devices[t.device].kind}`, value: t.effort, text: `${spent(t.effort)}` }));
  const columns = [{ title: "task", get: (t) => t.text }, { title: "device", get: (t) => data.devices[t.device].name },
    { title: "time spent", number: true, get: (t) => t.effort, text: (t) => spent(t.effort) },
    { title: "share", number: true, get: (t) => t.effort / whole, text: (t) => percent(t.effort / whole) },
    { title: "building", number: true, get: (t) => t.building, text: (t) => spent(t.building) },
    { title: "checking, timing", number: true, get: (t) => t.running, text: (t) => spent(t.running) },
    { title: "the rest", number: true, get: rest, text: (t) => spent(rest(t)) },
    { title: "trials", number: true, get: (t) => t.trials },
    { title: "a trial", number: true, get: (t) => t.effort / t.trials, text: (t) => time(t.effort / t.trials) }];
  return [
    el("p", { class: "soft" }, `Wall time of all sessions: ${spent(whole)}, of which building ${share((t) => t.building)}, `
      + `checking and timing ${share((t) => t.running)}; the rest (${share(rest)}) is the search itself, the database, `
      + "starting up, and what was spent before databases kept these parts",
      tasks.length > 15 ? "; the chart has the 15 tasks that took longest." : "."),
    bars("effort", "Time spent on each task", rows, "seconds"),
    table("efforts", "time spent", columns, tasks, view),
  ];
}

function failures(data, view) {
  const ids = new Set(chosenTasks(data, view).map((t) => t.id)), kinds = new Map();
  const found = data.failures.map((f) => ({ ...f, count: f.tasks.reduce((a, [task, count]) => a + (ids.has(task) ? count : 0), 0),
    examples: f.examples.filter((e) => ids.has(e.task)) })).filter((f) => f.count).sort((a, b) => b.count - a.count);
  for (const f of found) kinds.set(f.kind, (kinds.get(f.kind) || 0) + f.count);
  if (!kinds.size) return [el("p", null, data.failures.length ? "No trial that the filters leave failed." : "No trial failed.")];
  const rows = [...kinds].map(([name, value]) => ({ name, value, text: value.toLocaleString("en") }));
  const columns = [{ title: "kind", get: (f) => f.kind }, { title: "template", get: (f) => f.template },
    { title: "trials", number: true, get: (f) => f.count }, { title: "for one", get: (f) => f.examples[0]?.message }];
  const shownKind = kinds.has(view.kind) ? view.kind : rows[0].name;
  const choose = chooser("Examples of", rows.map((r) => [r.name, r.name]), shownKind,
    (value) => { view.kind = value; view.again("failure-kind"); }, "failure-kind");
  const examples = found.filter((f) => f.kind === shownKind).flatMap((f) => f.examples.map((e) => ({ ...f, ...e }))).slice(0, 12);
  return [
    bars("failures", "Failures by kind", rows, "trials"),
    table("failure-kinds", "failures", columns, found, view),
    el("div", { class: "controls" }, choose),
    examples.map((e) => el("details", { id: `example-${e.id}` }, el("summary", { id: `summary-${e.id}` }, short(`${e.template}, ${data.tasks[e.task].text}, ${when(e.when)}`)),
      el("p", { class: "soft" }, short(e.knobs, 600)), el("pre", { id: `message-${e.id}`, tabindex: 0 }, e.message))),
  ];
}

function roofline(data, view) {
  const verified = chosenTasks(data, view).filter((t) => t.best), counted = (t) => t.flop && t.bytes;
  const tasks = verified.filter(counted), rest = uncounted(data, view, verified.filter((t) => !counted(t)));
  if (!tasks.length) return [el("p", null, "No kernel whose operations are counted has been verified, or none is left by the filters."), rest];
  return [...[...new Set(tasks.map((t) => t.device))].map((device) => {
    const roof = data.roofs.find((r) => r.device === device), mine = tasks.filter((t) => t.device === device);
    const ops = [...new Set(mine.map((t) => t.op))];
    const series = ops.map((op) => ({ name: op, points: mine.filter((t) => t.op === op).map((t) => ({ x: t.flop / t.bytes, y: gflops(t),
      text: `${t.text}: ${rate(gflops(t))} at ${digits(t.flop / t.bytes, 3)} operations a byte, ${percent(gflops(t) / limit(roof, t))} of the roof; ${t.best.template}`, task: t.id })) }));
    const knee = roof.flops / roof.bytes_per_second, said = `${rate(roof.flops)} and ${digits(roof.bytes_per_second / 1e9, 3)} GB/s`;
    const edge = (svg, x, y) => {
      const [low, high] = [Math.max(x.ends[0], y.ends[0] / roof.bytes_per_second), x.ends[1]];
      if (![low, knee].every(x.has) || ![low * roof.bytes_per_second, roof.flops].every(y.has)) return;
      svg.append(draw("path", { class: "roof", "stroke-dasharray": roof.measured ? "" : "6 5",
        d: `M${x(low)},${y(low * roof.bytes_per_second)}L${x(knee)},${y(roof.flops)}H${x(high)}` }));
    };
    const columns = [{ title: "operator", get: (t) => t.text }, { title: "operations a byte", number: true, get: (t) => t.flop / t.bytes, text: (t) => digits(t.flop / t.bytes, 3) },
      { title: "speed", number: true, get: gflops, text: (t) => rate(gflops(t)) },
      { title: "of the roof", number: true, get: (t) => gflops(t) / limit(roof, t), text: (t) => percent(gflops(t) / limit(roof, t)) },
      { title: "limited by", get: (t) => (t.flop / t.bytes < knee ? "memory" : "arithmetic") }, { title: "template", get: (t) => t.best.template }];
    const lowest = Math.min(knee, ...mine.map((t) => t.flop / t.bytes));
    return [
      el("h3", null, short(data.devices[device].name)),
      el("p", { class: roof.measured ? "soft" : "warn" }, roof.measured ? `Measured when this page was made, beside whatever else ran then: ${said}. ` :
        `The dashed roof is the fastest that any trial was (${said}), less than the device can: tune report --measure, on it, measures the real one. `,
        "Operations are the direct algorithm's: a Winograd kernel may be above the roof, and so may one whose operands stay in the caches."),
      chart(`roofline-${device}`, `Roofline of ${short(data.devices[device].name)}`, { title: "operations a byte", log: true },
        { title: "operations a second", log: true, text: rate }, series, view,
        { roof: edge, xs: [knee], ys: [roof.flops, lowest * roof.bytes_per_second], pick: (p) => { view.task = p.task; view.again("curve-task"); } }),
      table(`roofs-${device}`, `operators on ${short(data.devices[device].name, 40)}`, columns, mine, view),
    ];
  }), rest];
}

// Lists the operators that no roofline shows, because their operations are not counted.
function uncounted(data, view, tasks) {
  if (!tasks.length) return null;
  const columns = [{ title: "operator", get: (t) => t.text }, { title: "device", get: (t) => data.devices[t.device].name },
    { title: "time", number: true, get: (t) => t.best.seconds, text: (t) => time(t.best.seconds) },
    { title: "bytes a second", number: true, get: (t) => t.bytes && t.bytes / t.best.seconds, text: (t) => (t.bytes ? `${digits(t.bytes / t.best.seconds / 1e9, 3)} GB/s` : "-") },
    { title: "template", get: (t) => t.best.template }];
  return [el("h3", null, "Without counted operations"),
    el("p", { class: "soft" }, "These are in no chart: operations are counted of convolutions and dense layers alone. Bytes are those that any kernel has to move."),
    table("uncounted", "operators without counted operations", columns, tasks, view)];
}

function limit(roof, task) {
  return Math.min(roof.flops, (task.flop / task.bytes) * roof.bytes_per_second);
}
