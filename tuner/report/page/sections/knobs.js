// Draws what the knobs of a template did to a task's times.

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

addSection("knobs", "Knobs and space", knobs);
