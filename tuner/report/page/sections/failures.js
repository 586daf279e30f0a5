// Draws how many trials failed in which way, and shows examples.

const MOST_EXAMPLES = 12; // shown at once

/** @type {Section["build"]} */
function failures(data, view) {
  const found = chosenFailures(data, view);
  /** @type {Map<string, number>} */
  const kinds = new Map();
  for (const f of found) kinds.set(f.kind, (kinds.get(f.kind) ?? 0) + f.count);
  if (!kinds.size)
    return el("p", null, data.failures.length ? "No trial that the filters leave failed." : "No trial failed.");
  const rows = [...kinds].map(([name, value]) => ({ name, value, text: value.toLocaleString("en") }));
  /** @type {Column<Failure>[]} */
  const columns = [
    { title: "kind", get: (f) => f.kind },
    { title: "template", get: (f) => f.template },
    { title: "trials", number: true, get: (f) => f.count },
    { title: "for one", get: (f) => f.examples[0]?.message },
  ];
  const kind = view.kind !== undefined && kinds.has(view.kind) ? view.kind : rows[0].name;
  /** @type {[string, string][]} */
  const options = rows.map((r) => [r.name, r.name]);
  const choose = (/** @type {string} */ value) => {
    view.kind = value;
    view.again("failure-kind");
  };
  const examples = found
    .filter((f) => f.kind === kind)
    .flatMap((f) => f.examples.map((e) => exampleOf(data, f.template, e)));
  return [
    bars("failures", "Failures by kind", rows, "trials"),
    table("failure-kinds", "failures", columns, found, view),
    el("div", { class: "controls" }, chooser("Examples of", options, kind, choose, "failure-kind")),
    examples.slice(0, MOST_EXAMPLES),
  ];
}

/**
 * Returns the failures of the tasks that pass the filters, the most frequent first.
 * @param {Data} data
 * @param {View} view
 * @returns {Failure[]}
 */
function chosenFailures(data, view) {
  const ids = new Set(chosenTasks(data, view).map((t) => t.id));
  const found = data.failures.map((f) => ({
    ...f,
    count: f.tasks.reduce((sum, [task, count]) => sum + (ids.has(task) ? count : 0), 0),
    examples: f.examples.filter((e) => ids.has(e.task)),
  }));
  return found.filter((f) => f.count).sort((a, b) => b.count - a.count);
}

/**
 * @param {Data} data
 * @param {string} template
 * @param {Example} example
 */
function exampleOf(data, template, example) {
  const title = short(`${template}, ${data.tasks[example.task].text}, ${when(example.when)}`);
  return el(
    "details",
    { id: `example-${example.id}` },
    el("summary", { id: `summary-${example.id}` }, title),
    el("p", { class: "soft" }, short(example.knobs, 600)),
    el("pre", { id: `message-${example.id}`, tabindex: 0 }, example.message),
  );
}

addSection("failures", "Failures", failures);
