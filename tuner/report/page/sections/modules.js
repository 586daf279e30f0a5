// Draws built modules, a section for each: its layers, where an inference's time goes, and the graph.

function roofOf(data, module, device) {
  const title = module.devices[device].title, at = data.devices.findIndex((d) => d.name === title);
  const roof = data.roofs.find((r) => r.device === at && r.measured);
  return roof ? roof.flops : module.profile ? module.profile.peak : null;
}

function moduleView(module, id) {
  return (data, view) => {
    const stages = stagesOf(module), nodeOf = (layer) => module.flow.nodes.find((n) => n.operator === layer);
    const layers = module.layers.map((l, i) => ({ ...l, i, measured: measuredOf(module, i), turn: nodeOf(i) }));
    const timeOf = (l) => l.measured ?? l.seconds;
    const timed = layers.filter((l) => timeOf(l)), whole = timed.reduce((a, l) => a + timeOf(l), 0);
    const share = (l) => { const peak = roofOf(data, module, l.device); return peak && l.flop && timeOf(l) ? l.flop / timeOf(l) / peak : null; };
    const columns = [{ title: "layer", get: (l) => l.node }, { title: "computes", get: (l) => l.text },
      { title: "template", get: (l) => l.template }, { title: "layout", get: (l) => l.layout }, { title: "device", get: (l) => module.devices[l.device].short },
      { title: "time", number: true, get: (l) => l.seconds, text: (l) => time(l.seconds) },
      ...(module.profile ? [{ title: "in the network", number: true, get: (l) => l.measured, text: (l) => time(l.measured) }] : []),
      { title: "speed", number: true, get: (l) => (l.flop && timeOf(l) ? l.flop / timeOf(l) : null), text: (l) => rate(l.flop && timeOf(l) ? l.flop / timeOf(l) : null) },
      { title: "of peak", number: true, get: share, text: (l) => percent(share(l)) },
      ...module.vendors.flatMap((v) => [
        { title: v, number: true, get: (l) => l.peers[v], text: (l) => time(l.peers[v]) },
        { title: `times better than ${v}`, number: true, get: (l) => (l.peers[v] && l.seconds ? l.peers[v] / l.seconds : null),
          text: (l) => (l.peers[v] && l.seconds ? digits(l.peers[v] / l.seconds, 3) : "-") }]),
      ...(stages.length ? [
        { title: "stage", number: true, get: (l) => (l.turn ? l.turn.stage + 1 : null), text: (l) => (l.turn ? stageText(stages, l.turn) : "-") },
        { title: "at the same time as", get: (l) => (l.turn ? beside(stages, l.turn).join(", ") : null) }] : []),
      { title: "known from", get: (l) => l.source + (l.near ? `: ${l.near.from}${l.near.differs && ` (differs in ${l.near.differs})`}` : "") },
      { title: "error", number: true, get: (l) => l.error, text: (l) => digits(l.error, 2) }, { title: "knobs", get: (l) => l.knobs }];
    const slow = [...timed].sort((a, b) => timeOf(b) - timeOf(a)).slice(0, 15);
    const noPeak = layers.some((l) => l.flop && share(l) === null);
    return [
      facts([["layers", layers.length], ["their time together", time(whole || null)], ["times known", `${timed.length} of ${layers.length}`], ["values", module.dtype], ["threads", module.threads],
        ...(stages.length ? [["stages", `${stages.length}, ${stages.filter((s) => s.length > 1).length} of several groups`]] : []),
        ["devices", module.devices.map((d) => short(d.name, 60)).join("; ")]]),
      module.bench ? benchTable(module, id, view) : null,
      el("p", { class: "soft" }, "Time: of the stored trial that the kernel was chosen by. ",
        module.profile ? "In the network: measured call by call in a whole inference. " : "",
        module.vendors.length ? "Columns of libraries: their kernels for the same layer on the same device, where one was a trial (tune model --vendor). " :
          "No library's kernels were trials beside these (tune model --vendor): only whole networks are compared (tune bench --against). ",
        timed.length < layers.length ? `Times of ${timed.length} of ${many(layers.length, "layer")} are known: sums and shares are of these alone. ` : "",
        noPeak ? "The peak of the device was not measured: tune report --measure does so on it. " : ""),
      table(`layers-${id}`, `layers of ${short(module.model, 40)}`, columns, layers, view),
      el("h3", null, "Where an inference's time goes"),
      module.profile ? bars(`calls-${id}`, "Time of each call", topCalls(module), "seconds")
        : !timed.length ? el("p", null, "No layer's time is known: tune its model on this device, or tune report --measure.")
          : bars(`calls-${id}`, "Time of each layer", slow.map((l) => ({ name: `${l.node}: ${l.text}`, value: timeOf(l), text: `${time(timeOf(l))}, ${percent(timeOf(l) / whole)}` })), "seconds"),
      el("h3", null, "The plan as a graph"),
      graph(module, id, layers, stages),
    ];
  };
}

// Returns the measured seconds of a layer, the sum of the profile's calls with its name, or null if there are none.
function measuredOf(module, layer) {
  if (!module.profile) return null;
  const calls = module.profile.calls.filter((c) => c.name === module.layers[layer].node);
  return calls.length ? calls.reduce((a, c) => a + c.seconds, 0) : null;
}

function topCalls(module) {
  const whole = module.profile.calls.reduce((a, c) => a + c.seconds, 0);
  return [...module.profile.calls].sort((a, b) => b.seconds - a.seconds).slice(0, 15)
    .map((c) => ({ name: c.name, value: c.seconds, text: `${time(c.seconds)}, ${percent(c.seconds / whole)}` }));
}

function benchTable(module, id, view) {
  const [ours] = module.bench.contenders;
  const columns = [{ title: "contender", get: (c) => c.version }, { title: "median", number: true, get: (c) => c.median_seconds, text: (c) => time(c.median_seconds) },
    { title: "ours is times better", number: true, get: (c) => c.median_seconds / ours.median_seconds, text: (c) => digits(c.median_seconds / ours.median_seconds, 3) }];
  return table(`bench-${id}`, `latency, ${many(module.bench.threads, "thread")}, alternating`, columns, module.bench.contenders, view);
}

// Returns a module's stages. A stage is a list of groups, and a group is a list of nodes in their order. There are no
// stages if kernels run one by one.
function stagesOf(module) {
  const stages = [];
  for (const node of module.flow.nodes)
    if (node.stage !== null) ((stages[node.stage] ??= [])[node.group] ??= []).push(node);
  return stages;
}

function stageText(stages, node) {
  const groups = stages[node.stage].length;
  return `${node.stage + 1}` + (groups > 1 ? `, group ${node.group + 1} of ${groups}` : "");
}

// Returns the names of what the other groups of a node's stage run at the same time.
function beside(stages, node) {
  return stages[node.stage].flatMap((group, i) => (i === node.group ? [] : group.map((n) => n.name)));
}

// Returns the row of every node, and its place in the row, counted from the middle. With stages, one stage is below the
// other, and the groups of a stage are side by side. Without stages, a node's row is the number of steps before the
// node, and a row is in the program's order.
function arranged(nodes, edges, stages) {
  const row = nodes.map(() => 0), column = nodes.map(() => 0);
  if (stages.length) {
    let next = 1;
    for (const stage of stages) {
      stage.forEach((group, g) => group.forEach((node, k) => {
        const i = nodes.indexOf(node);
        row[i] = next + k;
        column[i] = g - (stage.length - 1) / 2;
      }));
      next += Math.max(...stage.map((group) => group.length));
    }
    nodes.forEach((node, i) => { if (node.stage === null && node.kind !== "input") row[i] = next++; });
    spread(nodes.flatMap((node, i) => (node.kind === "input" ? [i] : [])), column);
    return { row, column };
  }
  for (const [a, b] of [...edges].sort((x, y) => x[1] - y[1])) row[b] = Math.max(row[b], row[a] + 1);
  const rows = [];
  nodes.forEach((_, i) => (rows[row[i]] ??= []).push(i));
  for (const members of rows) spread(members, column);
  return { row, column };
}

function spread(members, column) {
  members.forEach((node, k) => { column[node] = k - (members.length - 1) / 2; });
}

function graph(module, id, layers, stages) {
  const { nodes, edges } = module.flow, { row: depth, column } = arranged(nodes, edges, stages);
  const most = 1 + 2 * Math.max(...column), rows = 1 + Math.max(...depth);
  const box = 216, wide = Math.max(widthOf() - 20, most * (box + 16) + (stages.length ? 160 : 60)), gap = 62;
  const svg = draw("svg", { viewBox: `0 0 ${wide} ${rows * gap + 10}`, width: wide, height: rows * gap + 10, "data-chart": `graph-${id}`, class: "wide" });
  const at = nodes.map((_, i) => ({ x: wide / 2 + column[i] * (box + 16), y: depth[i] * gap + 24 }));
  const free = at.map((p) => p.y);  // down to where the space below a node is free
  stages.forEach((groups, s) => {
    if (groups.length < 2) return;
    const places = groups.flat().map((node) => at[nodes.indexOf(node)]), xs = places.map((p) => p.x), ys = places.map((p) => p.y);
    const x = Math.min(...xs) - box / 2 - 7, y = Math.min(...ys) - 25;
    svg.append(draw("rect", { class: "together", x, y, width: Math.max(...xs) + box / 2 + 7 - x, height: Math.max(...ys) + 25 - y, rx: 8, "data-stage": s, "data-groups": groups.length }),
      draw("text", { x: x - 6, y: y + 15, "text-anchor": "end", class: "soft" }, `stage ${s + 1}`));
    for (const group of groups) free[nodes.indexOf(group.at(-1))] = Math.max(...ys);
  });
  for (const [a, b] of edges) svg.append(draw("path", { class: "edge", d: line(at[a], at[b], (at[b].y - free[a]) / gap, box, free[a]) }));
  const placed = nodes.map((node, i) => {
    const layer = node.operator === null ? null : layers[node.operator], { x, y } = at[i];
    const name = node.kind === "output" ? "outputs" : node.kind === "copy" ? "copy" : node.name;
    const on = module.devices[node.device].short, told = module.devices.length > 1 ? [on] : [];
    const layout = layer?.layout?.replace(/^(.+) -> \1$/, "$1");
    const second = layer ? [...told, time(layer.measured ?? layer.seconds), layout].filter(Boolean).join(", ")
      : node.kind === "copy" ? `to ${on}` : [...told, node.kind].join(", ");
    svg.append(draw("rect", { class: `node ${node.kind} c${node.device % 7}`, x: x - box / 2, y: y - 19, width: box, height: 38, rx: node.kind === "kernel" ? 4 : 16, "data-node": i, "data-kind": node.kind, "data-device": node.device, "data-stage": node.stage, "data-group": node.group }),
      draw("text", { x, y: y - 3, "text-anchor": "middle", class: node.kind === "copy" ? "oncolour" : null }, clip(name, 26)),
      draw("text", { x, y: y + 12, "text-anchor": "middle", class: node.kind === "copy" ? "oncolour" : "soft" }, clip(second, 32)));
    const what = layer ? `${layer.text}; ${layer.template ?? "no template"}; ${layer.layout ?? "layout not known"}; ${time(layer.measured ?? layer.seconds)}` : node.kind;
    const turn = node.stage === null ? "" : `; stage ${stageText(stages, node)}` + (beside(stages, node).length ? `, at the same time as ${beside(stages, node).join(", ")}` : "");
    return { px: x, py: y, text: `${name} on ${on}: ${what}${turn}`, point: node };
  });
  const columns = [{ title: "node", get: (n) => n.i }, { title: "name", get: (n) => n.name }, { title: "kind", get: (n) => n.kind }, { title: "device", get: (n) => module.devices[n.device].short },
    ...(stages.length ? [{ title: "stage", get: (n) => (n.stage === null ? null : n.stage + 1) }, { title: "group", get: (n) => (n.group === null ? null : n.group + 1) }] : []),
    { title: "layout", get: (n) => (n.operator === null ? null : layers[n.operator].layout) }, { title: "reads", get: (n) => edges.filter((e) => e[1] === n.i).map((e) => e[0]).join(" ") }];
  const list = () => nodes.map((n, i) => ({ ...n, i }));
  const counts = (kind) => nodes.filter((n) => n.kind === kind).length;
  const drawn = figure(`graph-${id}`, `Graph of ${short(module.model, 60)}`, svg, [placed], null, csvButton(`graph-${id}`, columns, list));
  const scroll = el("div", { class: "scroll", id: `scroll-graph-${id}`, tabindex: 0, role: "region", "aria-label": `graph of ${short(module.folder)}` });
  drawn.querySelector("svg").replaceWith(scroll);
  scroll.append(svg);
  const key = el("ul", { class: "legend" }, module.devices.map((d, i) => el("li", null,
    draw("svg", { width: 26, height: 12, viewBox: "0 0 26 12", "aria-hidden": "true", class: `c${i % 7}` }, draw("rect", { class: "node", x: 1, y: 1, width: 24, height: 10 })), short(d.name, 60))));
  return [el("p", { class: "soft" }, `As it was built: ${many(counts("kernel"), "kernel")} of templates, ${many(counts("other"), "other function")} (dashed), ${counts("copy") === 1 ? "1 copy" : `${counts("copy")} copies`} between devices (filled). A layer may be several kernels.`,
    stages.some((s) => s.length > 1) ? " Stages run from top to bottom; columns of kernels in one frame run at the same time." : ""), key, drawn];
}

// Returns the path of an edge. It goes straight down to `free`, and from there to the next row. An edge of several
// `steps` goes round what lies between.
function line(a, b, steps, box, free) {
  const from = `M${a.x},${a.y + 19}V${free + 19}`, to = `${b.x},${b.y - 19}`;
  if (steps === 1) return `${from}L${to}`;
  const side = Math.max(a.x, b.x) + box * 0.75 + Math.min(40, 8 * steps);
  return `${from}C${side},${free + 50} ${side},${b.y - 50} ${to}`;
}

addSections((data) =>
  data.modules.map((m, i) => ({ id: `module-${i}`, title: `Module ${short(m.model, 60)}`, build: moduleView(m, i) })),
);
