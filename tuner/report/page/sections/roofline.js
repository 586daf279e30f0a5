// Draws the best kernels under the roof of each device, one for each precision.

const BUSY = 1.05; // times the measured peak that a kernel reaches only where that was measured on a busy machine
const BUSY_SAID =
  "A trial was faster than this peak, so the machine was busy when it was measured: make the page again on a quiet " +
  "one. The dashed roof is that trial's speed";

/**
 * @param {Task} task
 * @returns {task is Counted}
 */
function isCounted(task) {
  return Boolean(task.best && task.flop && task.bytes);
}

/** @param {Counted} task */
function intensity(task) {
  return task.flop / task.bytes;
}

/** @type {Section["build"]} */
function roofline(data, view) {
  const verified = chosenTasks(data, view).filter(isVerified);
  const tasks = verified.filter(isCounted);
  const rest = verified.filter((t) => !isCounted(t));
  const nothing = "No kernel whose operations are counted has been verified, or none is left by the filters.";
  const charts = data.roofs.map((roof, id) => {
    const mine = tasks.filter((t) => t.device === roof.device && t.precision === roof.precision);
    return mine.length ? rooflineOf(data, view, roof, id, mine) : null;
  });
  return [tasks.length ? charts : el("p", null, nothing), uncounted(data, view, rest)];
}

/**
 * @param {Data} data
 * @param {View} view
 * @param {Roof} found
 * @param {number} id
 * @param {Counted[]} tasks
 * @returns {Child}
 */
function rooflineOf(data, view, found, id, tasks) {
  const { device, precision, measured } = found;
  // A kernel of the direct algorithm shows what the device can do: other work ran beside a measurement of less.
  const direct = tasks.filter((t) => !t.best.template.includes("winograd")).map((t) => Number(gflops(t)));
  const busy = measured && found.flops !== null && Math.max(0, ...direct) > BUSY * found.flops;
  // A limit that is not known is no number: no roof is drawn, and no share of it is told.
  const flops = busy ? Math.max(...direct) : (found.flops ?? Number.NaN);
  const roof = { flops, bytes: found.bytes_per_second ?? Number.NaN };
  const knee = roof.flops / roof.bytes;
  const share = (/** @type {Counted} */ t) => Number(gflops(t)) / Math.min(roof.flops, intensity(t) * roof.bytes);
  const series = [...new Set(tasks.map((t) => t.op))].map((name) => {
    const mine = tasks.filter((t) => t.op === name);
    const points = mine.map((t) => {
      const speed = `${rate(gflops(t), t.precision)} at ${digits(intensity(t), 3)} operations a byte`;
      const text = `${t.text}: ${speed}, ${percent(share(t))} of the roof; ${t.best.template}`;
      return { x: intensity(t), y: Number(gflops(t)), text, task: t.id };
    });
    return { name, points };
  });
  const edge = (/** @type {SVGSVGElement} */ svg, /** @type {Scale} */ x, /** @type {Scale} */ y) => {
    const [low, high] = [Math.max(x.ends[0], y.ends[0] / roof.bytes), x.ends[1]];
    if (![low, knee].every(x.has) || ![low * roof.bytes, roof.flops].every(y.has)) return;
    const d = `M${x(low)},${y(low * roof.bytes)}L${x(knee)},${y(roof.flops)}H${x(high)}`;
    svg.append(draw("path", { class: "roof", "stroke-dasharray": measured && !busy ? "" : "6 5", d }));
  };
  const pick = (/** @type {Point} */ p) => {
    view.task = p.task ?? view.task;
    view.again("curve-task");
  };
  const lowest = Math.min(knee, ...tasks.map(intensity));
  const name = `${short(data.devices[device].name)}, ${precision}`;
  const x = { title: "operations a byte", log: true };
  const y = { title: "billion operations a second", log: true, text: (/** @type {number} */ v) => digits(v / 1e9, 3) };
  const more = { roof: edge, xs: [2 * knee], ys: [roof.flops, lowest * roof.bytes], pick };
  return [
    el("h3", null, name),
    aboutRoof(found, `${rate(found.flops ?? roof.flops, precision)} and ${digits(roof.bytes / 1e9, 3)} GB/s`),
    busy ? el("p", { class: "warn" }, `${BUSY_SAID} (${rate(roof.flops, precision)}).`) : null,
    chart(`roofline-${id}`, `Roofline of ${name}`, x, y, series, more),
    roofTable(id, name, tasks, view, { share, knee, peak: measured ? roof.flops : null }),
  ];
}

/**
 * @param {Roof} roof
 * @param {string} limits
 */
function aboutRoof({ measured, precision }, limits) {
  const instruction = precision === "int8" ? ", the peak by the instruction that kernels multiply integers with" : "";
  const said = measured
    ? `Measured when this page was made, beside whatever else ran then${instruction}: ${limits}. `
    : `The dashed roof is the fastest that any trial was (${limits}), less than the device can: ` +
      "tune report --measure, on it, measures the real one. ";
  const algorithm =
    "Operations are the direct algorithm's: a Winograd kernel may be above the roof, and so may one whose operands " +
    "stay in the caches.";
  return el("p", { class: measured ? "soft" : "warn" }, said, algorithm);
}

/**
 * Lists the operators under a roof. From the `knee` on, in operations a byte, arithmetic is the limit.
 * @param {number} id
 * @param {string} name of the device and the precision
 * @param {Counted[]} tasks
 * @param {View} view
 * @param {{ share: (task: Counted) => number, knee: number, peak: number | null }} roof
 */
function roofTable(id, name, tasks, view, { share, knee, peak }) {
  const ofPeak = (/** @type {Counted} */ t) => (peak ? Number(gflops(t)) / peak : null);
  /** @type {Column<Counted>[]} */
  const columns = [
    { title: "operator", get: (t) => t.text },
    { title: "operations a byte", number: true, get: intensity, text: (t) => digits(intensity(t), 3) },
    { title: "speed", number: true, get: gflops, text: (t) => rate(gflops(t), t.precision) },
    { title: "of peak", number: true, get: ofPeak, text: (t) => percent(ofPeak(t)) },
    { title: "of the roof", number: true, get: share, text: (t) => percent(share(t)) },
    { title: "limited by", get: (t) => (intensity(t) < knee ? "memory" : "arithmetic") },
    { title: "template", get: (t) => t.best.template },
  ];
  return table(`roofs-${id}`, `operators on ${name}`, columns, tasks, view);
}

/**
 * Lists the operators that no roofline shows, because their operations are not counted.
 * @param {Data} data
 * @param {View} view
 * @param {Verified[]} tasks
 */
function uncounted(data, view, tasks) {
  if (!tasks.length) return null;
  const moved = (/** @type {Verified} */ t) => t.bytes && t.bytes / t.best.seconds;
  /** @type {Column<Verified>[]} */
  const columns = [
    { title: "operator", get: (t) => t.text },
    { title: "device", get: (t) => data.devices[t.device].name },
    { title: "time", number: true, get: (t) => t.best.seconds, text: (t) => time(t.best.seconds) },
    {
      title: "bytes a second",
      number: true,
      get: moved,
      text: (t) => (t.bytes ? `${digits(t.bytes / t.best.seconds / 1e9, 3)} GB/s` : "-"),
    },
    { title: "template", get: (t) => t.best.template },
  ];
  const said =
    "These are in no chart: operations are counted of convolutions and dense layers alone. Bytes are those that any " +
    "kernel has to move.";
  return [
    el("h3", null, "Without counted operations"),
    el("p", { class: "soft" }, said),
    table("uncounted", "operators without counted operations", columns, tasks, view),
  ];
}

addSection("roofline", "Roofline", roofline);
