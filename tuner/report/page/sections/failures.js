// Draws how many trials failed in which way, and shows examples.

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

addSection("failures", "Failures", failures);
