// Keeps the list of sections, and chooses what the sections show: tasks and rows that pass the filters, and the task that is looked at.

const listed = []; // functions that take the data and return sections, in the page's order

// Adds a section to the page. build(data, view) returns what it shows.
function addSection(id, title, build) {
  addSections(() => [{ id, title, build }]);
}

// Adds the sections that list(data) returns, however many they are.
function addSections(list) {
  listed.push(list);
}

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

function spent(seconds) {
  return seconds >= 5400 ? `${digits(seconds / 3600, 3)} h` : seconds >= 90 ? `${digits(seconds / 60, 3)} min` : `${digits(seconds, 3)} s`;
}
