// Draws where the tuning time went.

const LONGEST_TASKS = 15; // tasks of the chart

/**
 * @param {Task} task
 * @returns {task is Spent}
 */
function isSpent(task) {
  return Boolean(task.effort);
}

/** @param {Spent} task */
function restOf(task) {
  return Math.max(0, task.effort - task.building - task.running);
}

/** @type {Section["build"]} */
function effort(data, view) {
  const tasks = chosenTasks(data, view)
    .filter(isSpent)
    .sort((a, b) => b.effort - a.effort);
  if (!tasks.length) return el("p", null, "This database has no times of sessions (imported trials bring none).");
  const whole = total(tasks, (t) => t.effort);
  const share = (/** @type {(t: Spent) => number} */ get) => percent(total(tasks, get) / whole);
  const rows = tasks.slice(0, LONGEST_TASKS).map((t) => {
    return { name: `${t.text}, ${data.devices[t.device].kind}`, value: t.effort, text: spent(t.effort) };
  });
  /** @type {Column<Spent>[]} */
  const columns = [
    { title: "task", get: (t) => t.text },
    { title: "device", get: (t) => data.devices[t.device].name },
    { title: "time spent", number: true, get: (t) => t.effort, text: (t) => spent(t.effort) },
    { title: "share", number: true, get: (t) => t.effort / whole, text: (t) => percent(t.effort / whole) },
    { title: "building", number: true, get: (t) => t.building, text: (t) => spent(t.building) },
    { title: "checking, timing", number: true, get: (t) => t.running, text: (t) => spent(t.running) },
    { title: "the rest", number: true, get: restOf, text: (t) => spent(restOf(t)) },
    { title: "trials", number: true, get: (t) => t.trials },
    { title: "a trial", number: true, get: (t) => t.effort / t.trials, text: (t) => time(t.effort / t.trials) },
  ];
  const parts = `building ${share((t) => t.building)}, checking and timing ${share((t) => t.running)}`;
  const more =
    `the rest (${share(restOf)}) is the search itself, the database, starting up, and what was spent before ` +
    "databases kept these parts";
  const cut = tasks.length > LONGEST_TASKS ? `; the chart has the ${LONGEST_TASKS} tasks that took longest.` : ".";
  return [
    el("p", { class: "soft" }, `Wall time of all sessions: ${spent(whole)}, of which ${parts}; ${more}${cut}`),
    bars("effort", "Time spent on each task", rows, "seconds"),
    table("efforts", "time spent", columns, tasks, view),
  ];
}

addSection("effort", "Where the tuning time went", effort);
