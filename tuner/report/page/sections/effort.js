// Draws where the tuning time went.

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

addSection("effort", "Where the tuning time went", effort);
