// Draws what the knobs of a template did to a task's times.

/** @type {Section["build"]} */
function knobs(data, view) {
  const ids = new Set(chosenTasks(data, view).map((t) => t.id));
  const views = data.knobs.map((k, id) => ({ ...k, id })).filter((k) => ids.has(k.task));
  if (!views.length) return el("p", null, "No task has enough trials to tell.");
  const largest = views.reduce((a, b) => (b.of > a.of ? b : a));
  const mine = views.find((k) => k.id === view.knobs) ?? views.find((k) => k.task === view.task) ?? largest;
  /** @type {[number, string][]} */
  const options = views.map((k) => {
    const task = data.tasks[k.task];
    return [k.id, `${k.template}, ${clip(task.text, 60)}, ${clip(data.devices[task.device].name, 26)}`];
  });
  const choose = (/** @type {string} */ value) => {
    view.knobs = Number(value);
    view.again("knob-view");
  };
  const drawn = mine.rows.length < mine.of ? " (drawn evenly)" : "";
  const said =
    "Importance: how much of the spread of the times (of their logarithms) a knob's values explain by themselves, " +
    `over ${mine.rows.length} of ${mine.of.toLocaleString("en")} trials${drawn}. ` +
    "A search prefers what is fast: its trials are no fair sample of the space.";
  const rows = mine.names.map((name, i) => ({ name, value: mine.importance[i], text: percent(mine.importance[i]) }));
  return [
    el("div", { class: "controls" }, chooser("Template and task", options, mine.id, choose, "knob-view")),
    el("p", { class: "soft" }, said),
    bars("importance", "Importance of each knob", rows, "share of the variance"),
    mine.names.length > 1 ? knobLines(mine) : null,
    trialsByKnob(mine, mine.names.indexOf(chosenKnob(mine, view, "across"))),
    mine.names.length > 1 ? knobPairs(mine, view) : null,
  ];
}

/**
 * Returns the knob that an axis of the map shows.
 * @param {KnobView} mine
 * @param {View} view
 * @param {"across" | "down"} which
 * @returns {string}
 */
function chosenKnob(mine, view, which) {
  const chosen = view[which];
  if (chosen !== undefined && mine.names.includes(chosen)) return chosen;
  const other = which === "down" ? chosenKnob(mine, view, "across") : null;
  return mine.names.find((name) => name !== other) ?? mine.names[0];
}

/**
 * @param {KnobView} mine
 * @param {number} knob
 */
function trialsByKnob(mine, knob) {
  const values = mine.values[knob];
  const points = mine.rows.map((row) => {
    const seconds = row[row.length - 1];
    const config = mine.names.map((name, i) => `${name}=${mine.values[i][row[i]]}`).join(", ");
    return { x: row[knob], y: seconds, text: `${config}: ${time(seconds)}` };
  });
  const title = `${short(mine.names[knob], 30)} (in the order of its values)`;
  const text = (/** @type {number} */ v) => (Number.isInteger(v) ? clip(values[v] ?? "", 12) : "");
  const y = { title: "seconds a call", log: true, text: time };
  return chart("space", "Every trial by one knob", { title, text }, y, [{ name: "trials", points }]);
}

/**
 * Draws a line for each trial through its value of every knob, the fastest tenth in colour on top of the others.
 * @param {KnobView} mine
 */
function knobLines(mine) {
  const width = widthOf();
  const height = 260;
  const svg = canvas("lines", width, height);
  const [left, right, top, bottom] = [30, width - 60, 30, height - 14];
  const across = (/** @type {number} */ knob) => left + ((right - left) * knob) / (mine.names.length - 1);
  const down = (/** @type {number} */ knob, /** @type {number} */ value) =>
    bottom - ((bottom - top) * value) / Math.max(1, mine.values[knob].length - 1);
  const seconds = (/** @type {number[]} */ row) => row[row.length - 1];
  const rows = [...mine.rows].sort((a, b) => seconds(b) - seconds(a));
  const fast = rows.slice(-Math.max(1, Math.round(rows.length / 10)));
  for (const row of rows) {
    const d = mine.names.map((_, i) => `${i ? "L" : "M"}${across(i).toFixed(1)},${down(i, row[i]).toFixed(1)}`).join("");
    svg.append(draw("path", { class: fast.includes(row) ? "trial fast" : "trial", d, "data-seconds": seconds(row) }));
  }
  /** @type {Placed<string>[][]} */
  const placed = mine.names.map((name, i) => {
    const x = across(i);
    const turned = { x, y: i % 2 ? 12 : 24, "text-anchor": i ? "middle" : "start" };
    svg.append(draw("path", { class: "axis", d: `M${x},${top}V${bottom}` }), draw("text", turned, clip(name, 14)));
    return mine.values[i].map((value, v) => {
      const has = (/** @type {number[]} */ row) => row[i] === v;
      const [all, best] = [rows.filter(has).length, fast.filter(has).length];
      svg.append(draw("text", { class: "soft", x: x + 4, y: down(i, v) + 4 }, clip(value, 8)));
      const text = `${name}=${value}: ${many(all, "trial")}, ${best} of the fastest ${fast.length}`;
      return { px: x, py: down(i, v), text, point: value };
    });
  });
  /** @type {Column<number[]>[]} */
  const columns = [
    ...mine.names.map((title, i) => ({ title, get: (/** @type {number[]} */ row) => mine.values[i][row[i]] })),
    { title: "seconds", get: seconds },
  ];
  const button = csvButton("lines", columns, () => rows);
  const label = `Trials through the values of all knobs; in colour, the fastest ${fast.length}`;
  return [el("h3", null, label), figure({ name: "lines", label, svg, placed, button })];
}

/**
 * @param {KnobView} mine
 * @param {View} view
 */
function knobPairs(mine, view) {
  const names = { across: chosenKnob(mine, view, "across"), down: chosenKnob(mine, view, "down") };
  /** @type {[string, string][]} */
  const options = mine.names.map((name) => [name, name]);
  const pick = (/** @type {"across" | "down"} */ which, /** @type {string} */ title) => {
    const choose = (/** @type {string} */ value) => {
      view[which] = value;
      view.again(`knob-${which}`);
    };
    return chooser(title, options, names[which], choose, `knob-${which}`);
  };
  const [i, j] = [mine.names.indexOf(names.across), mine.names.indexOf(names.down)];
  const across = { name: names.across, values: mine.values[i] };
  const down = { name: names.down, values: mine.values[j] };
  const label = "Best seconds for each pair of values, in microseconds";
  return [
    el("div", { class: "controls" }, pick("across", "Across"), pick("down", "Down")),
    heat("pairs", label, across, down, heatCells(mine, i, j)),
  ];
}

/**
 * @param {KnobView} mine
 * @param {number} across
 * @param {number} down
 */
function heatCells(mine, across, down) {
  /** @type {Map<string, HeatCell>} */
  const cells = new Map();
  for (const row of mine.rows) {
    const key = `${row[across]}/${row[down]}`;
    const value = row[row.length - 1];
    const cell = cells.get(key) ?? { i: row[across], j: row[down], value: Number.POSITIVE_INFINITY, count: 0 };
    cells.set(key, { ...cell, value: Math.min(cell.value, value), count: cell.count + 1 });
  }
  return [...cells.values()];
}

addSection("knobs", "Knobs and space", knobs);
