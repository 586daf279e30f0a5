// Keeps the list of sections, and chooses what they show: what passes the filters, and the task that is looked at.

/** @type {((data: Data) => Section[])[]} */
const listed = []; // in the page's order

/**
 * Adds a section to the page.
 * @param {string} id
 * @param {string} title
 * @param {Section["build"]} build returns what the section shows
 */
function addSection(id, title, build) {
  addSections(() => [{ id, title, build }]);
}

/**
 * Adds the sections that `list` returns, however many they are.
 * @param {(data: Data) => Section[]} list
 */
function addSections(list) {
  listed.push(list);
}

/**
 * Tells whether a row passes the filters.
 * @param {Filtered} row
 * @param {View} view
 */
function passes(row, view) {
  return (
    (view.device === "" || row.device === Number(view.device)) &&
    (view.op === "" || row.op === view.op) &&
    row.text.toLowerCase().includes(view.text.toLowerCase())
  );
}

/**
 * Returns the tasks that pass the filters.
 * @param {Data} data
 * @param {View} view
 * @returns {Task[]}
 */
function chosenTasks(data, view) {
  return data.tasks.map((task, id) => ({ ...task, id })).filter((t) => passes(t, view));
}

/**
 * @param {Task} task
 * @returns {task is Verified}
 */
function isVerified(task) {
  return task.best !== null;
}

/**
 * Returns the operations a second of a task's best kernel.
 * @param {Task} task
 */
function gflops(task) {
  return task.flop && task.best ? task.flop / task.best.seconds : null;
}

/**
 * Returns the task that is looked at, or the first one if the filters leave that out.
 * @param {Task[]} tasks
 * @param {View} view
 * @returns {Task | undefined}
 */
function current(tasks, view) {
  return tasks.find((t) => t.id === view.task) ?? tasks[0];
}

/**
 * @param {Data} data
 * @param {Task[]} tasks
 * @param {View} view
 * @param {string} id
 */
function taskChooser(data, tasks, view, id) {
  /** @type {[number, string][]} */
  const options = tasks.map((t) => [t.id, `${clip(t.text, 70)}, ${clip(data.devices[t.device].name, 30)}`]);
  const change = (/** @type {string} */ value) => {
    view.task = Number(value);
    view.again(id);
  };
  return chooser("Task", options, current(tasks, view)?.id ?? "", change, id);
}

/**
 * @template {Task} T
 * @param {T[]} tasks
 * @param {(task: T) => number | null} get
 */
function total(tasks, get) {
  return tasks.reduce((sum, t) => sum + (get(t) ?? 0), 0);
}
