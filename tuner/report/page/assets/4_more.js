// Makes the sections about knobs, drift, reuse and pieces (the steps, transforms and copies that plans measured).

function knobs(data, view) {
  const ids = new Set(chosenTasks(data, view).map((t) => t.id));
  const views = data.knobs.map((k, id) => ({ ...k, id })).filter((k) => ids.has(k.task));
  if (!views.length) return [el("p", null, "No task has enough trials to tell.")];
  const fallback = views.find((k) => k.task === view.task) || views.reduce((a, b) => (b.of > a.of ? b : a));
  const mine = views.find((k) => k.id === view.knobs) || fallback;
  const options = views.map((k) => [k.id, `${k.template}, ${clip(data.tasks[k.task].text, 60)}, ${clip(data.devices[data.tasks[k.task].device].name, 26)}`]);
  const rows = mine.names.map((name, i) => ({ name, value: mine.importance[i], text: percent(mine.importance[i]) }));
  const pickOf = (which, title) => chooser(title, mine.names.map((n) => [n, n]), axisOf(mine, view, which),
    (value) => { view[which] = value; view.again(`knob-${which}`); }, `knob-${which}`);
  const across = mine.names.indexOf(axisOf(mine, view, "across")), down = mine.names.indexOf(axisOf(mine, view, "down"));
  return [
    el("div", { class: "controls" }, chooser("Template and task", options, mine.id, (v) => { view.knobs = Number(v); view.again("knob-view"); }, "knob-view")),
    el("p", { class: "soft" }, `Importance: how much of the spread of the times (of their logarithms) a knob's values explain by themselves, over ${mine.rows.length} `,
      `of ${mine.of.toLocaleString("en")} trials${mine.rows.length < mine.of ? " (drawn evenly)" : ""}. A search prefers what is fast: its trials are no fair sample of the space.`),
    bars("importance", "Importance of each knob", rows, "share of the variance"),
    chart("space", "Every trial by one knob", { title: `${short(mine.names[across], 30)} (in the order of its values)`, text: (v) => (Number.isInteger(v) ? clip(mine.values[across][v] ?? "", 12) : "") },
      { title: "seconds a call", log: true, text: time },
      [{ name: "trials", points: mine.rows.map((r) => ({ x: r[across], y: r[r.length - 1], text: `${mine.names.map((n, i) => `${n}=${mine.values[i][r[i]]}`).join(", ")}: ${time(r[r.length - 1])}` })) }], view),
    mine.names.length > 1 ? [
      el("div", { class: "controls" }, pickOf("across", "Across"), pickOf("down", "Down")),
      heat("pairs", "Best seconds for each pair of values, in microseconds", { name: mine.names[across], values: mine.values[across] },
        { name: mine.names[down], values: mine.values[down] }, pairs(mine, across, down))] : null,
  ];
}

function axisOf(mine, view, which) {
  if (mine.names.includes(view[which])) return view[which];
  return which === "across" ? mine.names[0] : mine.names.find((n) => n !== axisOf(mine, view, "across"));
}

function pairs(mine, across, down) {
  const cells = new Map();
  for (const row of mine.rows) {
    const key = `${row[across]}/${row[down]}`, value = row[row.length - 1];
    const cell = cells.get(key) || { i: row[across], j: row[down], value: Infinity, count: 0 };
    cells.set(key, { ...cell, value: Math.min(cell.value, value), count: cell.count + 1 });
  }
  return [...cells.values()];
}

function drift(data, view) {
  const shownOnes = data.drift.filter((d) => view.device === "" || d.device === Number(view.device));
  if (!shownOnes.length) return [el("p", null, "There is no trial yet.")];
  return shownOnes.map((d) => {
    const name = short(data.devices[d.device].name), step = (d.ended - d.began) / d.bins.length || 1;
    const rateOf = (count) => (60 * count) / step;
    const points = (which, what) => d.bins.map((b, i) => ({ x: i * step, y: rateOf(b[which]), text: `${when(d.began + i * step)}: ${b[which]} ${what}` }));
    const again = (marked, title) => ({ name: title, points: d.repeats.filter((r) => Boolean(r[2]) === marked).map(([at, ratio]) => ({ x: at, y: ratio,
      text: `${when(d.began + at)}: ${digits(ratio, 3)} times the config's first measurement${marked ? ", marked" : ""}` })) });
    const repeats = [again(false, "not marked"), again(true, "marked")].filter((s) => s.points.length);
    return [
      el("h3", null, name),
      el("p", { class: d.marked ? "warn" : "soft" }, `${d.marked.toLocaleString("en")} trials are marked: measured while the device did not keep its speed (its system slowed it down, or a kernel that never changes changed its time by more than a tenth). `,
        `From ${when(d.began)} to ${when(d.ended)}.`),
      chart(`rate-${d.device}`, `Trials a minute on ${name}`, { title: "seconds since the first trial" }, { title: "trials a minute" },
        [{ name: "all", line: true, marks: false, points: points(0, "trials") }, { name: "marked", line: true, marks: false, points: points(1, "marked trials") }], view, { height: 220 }),
      repeats.length ? [el("p", { class: "soft" }, `${d.repeated.toLocaleString("en")} times a config was measured again: over the first time it was.`),
        chart(`drift-${d.device}`, `Measured again on ${name}`, { title: "seconds since the first trial" }, { title: "times its first measurement", log: true }, repeats, view, { ys: [0.9, 1.1], height: 260 })] : null,
    ];
  });
}

function reuse(data, view) {
  const columns = [{ title: "task", get: (r) => r.text }, { title: "used on", get: (r) => r.on },
    { title: "measured on", get: (r) => r.from }, { title: "differs in", get: (r) => r.differs }];
  const rows = data.reuse.filter((r) => passes(r, view));
  return [
    el("p", { class: "soft" }, "Configs that have not been measured on the device that uses them: what a device would use of the most similar one of its family, or of what comes with the package, ",
      "and layers of modules that were built so. Their own times there are not known."),
    rows.length ? table("reuse", "reused records", columns, rows, view)
      : el("p", null, data.reuse.length ? "None is left by the filters." : "None: every record here was measured on the device that uses it."),
  ];
}

function pieces(data, view) {
  const columns = [{ title: "what", get: (p) => p.op }, { title: "piece", get: (p) => p.text }, { title: "device", get: (p) => data.devices[p.device].name },
    { title: "time", number: true, get: (p) => p.seconds, text: (p) => time(p.seconds) }];
  const rows = data.pieces.filter((p) => passes(p, view));
  return [el("p", { class: "soft" }, "What plans have measured: other steps of networks, transforms of layouts, copies between devices."),
    table("pieces", "pieces", columns, rows, view)];
}
