// Lists the tasks with their best kernels.

/** @param {Task} task */
function gain(task) {
  return task.best && task.first && task.first / task.best.seconds;
}

/** @type {Section["build"]} */
function overview(data, view) {
  const tasks = chosenTasks(data, view);
  /** @type {Column<Task>[]} */
  const columns = [
    { title: "task", get: (t) => t.text },
    { title: "best", number: true, get: (t) => t.best?.seconds, text: (t) => time(t.best?.seconds) },
    { title: "gain", number: true, get: gain, text: (t) => (gain(t) ? `${digits(gain(t), 3)}x` : "-") },
    { title: "first", number: true, get: (t) => t.first, text: (t) => time(t.first) },
    { title: "speed", number: true, get: gflops, text: (t) => rate(gflops(t), t.precision) },
    { title: "template", get: (t) => t.best?.template },
    { title: "error", number: true, get: (t) => t.best?.error, text: (t) => digits(t.best?.error, 2) },
    { title: "configs", number: true, get: (t) => t.configs },
    { title: "trials", number: true, get: (t) => t.trials },
    { title: "failures", number: true, get: (t) => t.failures },
    { title: "device", get: (t) => data.devices[t.device].name },
    { title: "precision", get: (t) => t.precision },
    { title: "marked", get: (t) => (t.best?.marked ? "yes" : "") },
    { title: "clocks", get: (t) => t.best?.condition ?? "" },
    { title: "knobs", get: (t) => t.best?.knobs, opens: true },
  ];
  const said =
    "Best: the fastest verified config, by its latest measurement; first: the first config that ran, before tuning. " +
    "Speeds count the direct algorithm's operations.";
  return [
    facts([
      ["tasks", tasks.length.toLocaleString("en")],
      ["trials", total(tasks, (t) => t.trials).toLocaleString("en")],
      ["failures", total(tasks, (t) => t.failures).toLocaleString("en")],
      ["time spent", spent(total(tasks, (t) => t.effort))],
    ]),
    el("p", { class: "soft" }, said),
    table("tasks", "tasks", columns, tasks, view),
  ];
}

addSection("overview", "Tasks", overview);
