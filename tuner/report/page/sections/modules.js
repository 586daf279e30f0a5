// Draws built modules, a section for each: its layers, where an inference's time goes, and the graph.

const SLOWEST = 15; // calls or layers of a chart

/**
 * Returns the operations a second that a layer's device can do in its precision, null if that was not measured.
 * @param {Data} data
 * @param {Module} module
 * @param {LayerRecord} layer
 */
function peakOf(data, module, layer) {
  const at = data.devices.findIndex((d) => d.name === module.devices[layer.device].title);
  const roof = data.roofs.find((r) => r.device === at && r.precision === layer.precision && r.measured);
  return roof ? roof.flops : (module.profile?.peaks[layer.precision] ?? null);
}

/**
 * @param {Module} module
 * @param {number} id
 * @returns {Section["build"]}
 */
function moduleView(module, id) {
  return (data, view) => {
    const stages = stagesOf(module);
    const layers = module.layers.map((_, i) => layerOf(data, module, i));
    const timed = layers.filter((l) => l.took);
    const caption = `layers of ${short(module.model, 40)}`;
    return [
      moduleFacts(module, layers, timed, stages),
      module.bench ? benchTable(module.bench, id, view) : null,
      aboutLayers(module, layers, timed),
      table(`layers-${id}`, caption, layerColumns(module, stages), layers, view),
      el("h3", null, "Where an inference's time goes"),
      timeBars(module, id, timed),
      el("h3", null, "The plan as a graph"),
      graph(module, id, layers, stages),
    ];
  };
}

/**
 * @param {Data} data
 * @param {Module} module
 * @param {number} i
 * @returns {Layer}
 */
function layerOf(data, module, i) {
  const layer = module.layers[i];
  const calls = module.profile?.calls.filter((c) => c.name === layer.node) ?? [];
  const measured = calls.length ? calls.reduce((sum, c) => sum + c.seconds, 0) : null;
  const took = measured ?? layer.seconds;
  const peak = peakOf(data, module, layer);
  const share = peak && layer.flop && took ? layer.flop / took / peak : null;
  const node = module.flow.nodes.find((n) => n.operator === i);
  return { ...layer, measured, took, share, turn: node && isStaged(node) ? node : null };
}

/**
 * Adds the times that the layers took.
 * @param {Layer[]} timed
 */
function wholeOf(timed) {
  return timed.reduce((sum, l) => sum + (l.took ?? 0), 0);
}

/**
 * @param {Module} module
 * @param {Layer[]} layers
 * @param {Layer[]} timed
 * @param {Stages} stages
 */
function moduleFacts(module, layers, timed, stages) {
  const several = stages.filter((s) => s.length > 1).length;
  /** @type {[string, string][]} */
  const staged = stages.length ? [["stages", `${stages.length}, ${several} of several groups`]] : [];
  return facts([
    ["layers", layers.length],
    ["their time together", time(wholeOf(timed) || null)],
    ["times known", `${timed.length} of ${layers.length}`],
    ["values", module.dtype],
    ["threads", module.threads],
    ...sizeFacts(module.sizes),
    ...staged,
    ["devices", module.devices.map((d) => short(d.name, 60)).join("; ")],
  ]);
}

/**
 * Tells how much memory a module takes; nothing of a module that an earlier version built.
 * @param {Sizes | null} sizes
 * @returns {[string, string][]}
 */
function sizeFacts(sizes) {
  if (!sizes) return [];
  return [
    ["weights", mebibytes(sizes.weights)],
    ["kernels", mebibytes(sizes.kernels)],
    ["memory of an inference", mebibytes(sizes.inference)],
    ["with the weights", mebibytes(sizes.peak)],
  ];
}

/**
 * @param {Module} module
 * @param {Layer[]} layers
 * @param {Layer[]} timed
 */
function aboutLayers(module, layers, timed) {
  const vendors = module.vendors.length
    ? "Columns of libraries: their kernels for the same layer on the same device, where one was a trial (tune model " +
      "--vendor). "
    : "No library's kernels were trials beside these (tune model --vendor): only whole networks are compared (tune " +
      "bench --against). ";
  const known = `Times of ${timed.length} of ${many(layers.length, "layer")} are known: `;
  return el(
    "p",
    { class: "soft" },
    "Time: of the stored trial that the kernel was chosen by. ",
    module.profile ? "In the network: measured call by call in a whole inference. " : "",
    vendors,
    timed.length < layers.length ? `${known}sums and shares are of these alone. ` : "",
    layers.some((l) => l.flop && l.share === null)
      ? "The peak of a device in some layers' precision was not measured: tune report --measure does so on it. "
      : "",
  );
}

/**
 * @param {Module} module
 * @param {Stages} stages
 * @returns {Column<Layer>[]}
 */
function layerColumns(module, stages) {
  const speed = (/** @type {Layer} */ l) => (l.flop && l.took ? l.flop / l.took : null);
  /** @type {Column<Layer>[]} */
  const measured = [{ title: "in the network", number: true, get: (l) => l.measured, text: (l) => time(l.measured) }];
  return [
    { title: "layer", get: (l) => l.node },
    { title: "computes", get: (l) => l.text },
    { title: "precision", get: (l) => l.precision },
    { title: "template", get: (l) => l.template },
    { title: "layout", get: (l) => l.layout },
    { title: "device", get: (l) => module.devices[l.device].short },
    { title: "time", number: true, get: (l) => l.seconds, text: (l) => time(l.seconds) },
    ...(module.profile ? measured : []),
    { title: "speed", number: true, get: speed, text: (l) => rate(speed(l), l.precision) },
    { title: "of peak", number: true, get: (l) => l.share, text: (l) => percent(l.share) },
    ...module.vendors.flatMap(vendorColumns),
    ...(stages.length ? turnColumns(stages) : []),
    { title: "known from", get: (l) => l.source + (l.near ? nearText(l.near) : "") },
    { title: "error", number: true, get: (l) => l.error, text: (l) => digits(l.error, 2) },
    { title: "knobs", get: (l) => l.knobs, opens: true },
  ];
}

/**
 * @param {string} vendor
 * @returns {Column<Layer>[]}
 */
function vendorColumns(vendor) {
  const ratio = (/** @type {Layer} */ l) => (l.peers[vendor] && l.seconds ? l.seconds / l.peers[vendor] : null);
  return [
    { title: vendor, number: true, get: (l) => l.peers[vendor], text: (l) => time(l.peers[vendor]) },
    { title: `than ${vendor}`, number: true, get: ratio, text: (l) => timesText(ratio(l)) },
  ];
}

/**
 * @param {Stages} stages
 * @returns {Column<Layer>[]}
 */
function turnColumns(stages) {
  return [
    {
      title: "stage",
      number: true,
      get: (l) => (l.turn ? l.turn.stage + 1 : null),
      text: (l) => (l.turn ? stageText(stages, l.turn) : "-"),
    },
    { title: "at the same time as", get: (l) => (l.turn ? beside(stages, l.turn).join(", ") : null) },
  ];
}

/** @param {Near} near */
function nearText(near) {
  return `: ${near.from}${near.differs && ` (differs in ${near.differs})`}`;
}

/**
 * Draws the slowest calls of the profile, or the slowest layers if there is no profile.
 * @param {Module} module
 * @param {number} id
 * @param {Layer[]} timed
 */
function timeBars(module, id, timed) {
  const layers = timed.map((l) => ({ name: `${l.node}: ${l.text}`, seconds: l.took ?? 0 }));
  const rows = module.profile ? module.profile.calls : layers;
  if (!module.profile && !timed.length)
    return el("p", null, "No layer's time is known: tune its model on this device, or tune report --measure.");
  const whole = rows.reduce((sum, r) => sum + r.seconds, 0);
  const slowest = [...rows].sort((a, b) => b.seconds - a.seconds).slice(0, SLOWEST);
  const told = slowest.map(({ name, seconds }) => {
    return { name, value: seconds, text: `${time(seconds)}, ${percent(seconds / whole)}` };
  });
  return bars(`calls-${id}`, `Time of each ${module.profile ? "call" : "layer"}`, told, "seconds");
}

/**
 * @param {Bench} bench
 * @param {number} id
 * @param {View} view
 */
function benchTable(bench, id, view) {
  const [ours] = bench.contenders;
  const ratio = (/** @type {Contender} */ c) => c.median_seconds / ours.median_seconds;
  const share = (/** @type {string} */ of) => (/** @type {Contender} */ c) => c.percentile_seconds[of];
  /** @type {Column<Contender>[]} */
  const columns = [
    { title: "contender", get: (c) => c.version },
    { title: "median", number: true, get: (c) => c.median_seconds, text: (c) => time(c.median_seconds) },
    ...["90", "99"].map((of) => {
      const get = share(of);
      return { title: `p${of}`, number: true, get, text: (/** @type {Contender} */ c) => time(get(c)) };
    }),
    { title: "than ours", number: true, get: ratio, text: (c) => (c === ours ? "-" : timesText(ratio(c))) },
    {
      title: "peak memory of its process",
      number: true,
      get: (c) => c.process_peak_bytes,
      text: (c) => mebibytes(c.process_peak_bytes),
    },
  ];
  const caption = `latency, ${many(bench.threads, "thread")}, alternating`;
  return table(`bench-${id}`, caption, columns, bench.contenders, view);
}

addSections((data) =>
  data.modules.map((m, i) => ({ id: `module-${i}`, title: `Module ${short(m.model, 60)}`, build: moduleView(m, i) })),
);
