// Draws the best kernels under the roof of each device.

function roofline(data, view) {
  const verified = chosenTasks(data, view).filter((t) => t.best), counted = (t) => t.flop && t.bytes;
  const tasks = verified.filter(counted), rest = uncounted(data, view, verified.filter((t) => !counted(t)));
  if (!tasks.length) return [el("p", null, "No kernel whose operations are counted has been verified, or none is left by the filters."), rest];
  return [...[...new Set(tasks.map((t) => t.device))].map((device) => {
    const roof = data.roofs.find((r) => r.device === device), mine = tasks.filter((t) => t.device === device);
    const ops = [...new Set(mine.map((t) => t.op))];
    const series = ops.map((op) => ({ name: op, points: mine.filter((t) => t.op === op).map((t) => ({ x: t.flop / t.bytes, y: gflops(t),
      text: `${t.text}: ${rate(gflops(t))} at ${digits(t.flop / t.bytes, 3)} operations a byte, ${percent(gflops(t) / limit(roof, t))} of the roof; ${t.best.template}`, task: t.id })) }));
    const knee = roof.flops / roof.bytes_per_second, said = `${rate(roof.flops)} and ${digits(roof.bytes_per_second / 1e9, 3)} GB/s`;
    const edge = (svg, x, y) => {
      const [low, high] = [Math.max(x.ends[0], y.ends[0] / roof.bytes_per_second), x.ends[1]];
      if (![low, knee].every(x.has) || ![low * roof.bytes_per_second, roof.flops].every(y.has)) return;
      svg.append(draw("path", { class: "roof", "stroke-dasharray": roof.measured ? "" : "6 5",
        d: `M${x(low)},${y(low * roof.bytes_per_second)}L${x(knee)},${y(roof.flops)}H${x(high)}` }));
    };
    const columns = [{ title: "operator", get: (t) => t.text }, { title: "operations a byte", number: true, get: (t) => t.flop / t.bytes, text: (t) => digits(t.flop / t.bytes, 3) },
      { title: "speed", number: true, get: gflops, text: (t) => rate(gflops(t)) },
      { title: "of the roof", number: true, get: (t) => gflops(t) / limit(roof, t), text: (t) => percent(gflops(t) / limit(roof, t)) },
      { title: "limited by", get: (t) => (t.flop / t.bytes < knee ? "memory" : "arithmetic") }, { title: "template", get: (t) => t.best.template }];
    const lowest = Math.min(knee, ...mine.map((t) => t.flop / t.bytes));
    return [
      el("h3", null, short(data.devices[device].name)),
      el("p", { class: roof.measured ? "soft" : "warn" }, roof.measured ? `Measured when this page was made, beside whatever else ran then: ${said}. ` :
        `The dashed roof is the fastest that any trial was (${said}), less than the device can: tune report --measure, on it, measures the real one. `,
        "Operations are the direct algorithm's: a Winograd kernel may be above the roof, and so may one whose operands stay in the caches."),
      chart(`roofline-${device}`, `Roofline of ${short(data.devices[device].name)}`, { title: "operations a byte", log: true },
        { title: "operations a second", log: true, text: rate }, series, view,
        { roof: edge, xs: [knee], ys: [roof.flops, lowest * roof.bytes_per_second], pick: (p) => { view.task = p.task; view.again("curve-task"); } }),
      table(`roofs-${device}`, `operators on ${short(data.devices[device].name, 40)}`, columns, mine, view),
    ];
  }), rest];
}

// Lists the operators that no roofline shows, because their operations are not counted.
function uncounted(data, view, tasks) {
  if (!tasks.length) return null;
  const columns = [{ title: "operator", get: (t) => t.text }, { title: "device", get: (t) => data.devices[t.device].name },
    { title: "time", number: true, get: (t) => t.best.seconds, text: (t) => time(t.best.seconds) },
    { title: "bytes a second", number: true, get: (t) => t.bytes && t.bytes / t.best.seconds, text: (t) => (t.bytes ? `${digits(t.bytes / t.best.seconds / 1e9, 3)} GB/s` : "-") },
    { title: "template", get: (t) => t.best.template }];
  return [el("h3", null, "Without counted operations"),
    el("p", { class: "soft" }, "These are in no chart: operations are counted of convolutions and dense layers alone. Bytes are those that any kernel has to move."),
    table("uncounted", "operators without counted operations", columns, tasks, view)];
}

function limit(roof, task) {
  return Math.min(roof.flops, (task.flop / task.bytes) * roof.bytes_per_second);
}

addSection("roofline", "Roofline", roofline);
