// Draws the graph of a built module. Start at `graph`.

const BOX = 216; // width of a node
const HALF = 19; // half of a node's height
const APART = 16; // between two nodes of a row
const DEEP = 62; // from one row to the next
const DEEPEST = 0.35; // opacity of the fill of the node that takes longest: text on it stays readable
const FRAME = 7; // between nodes and the frame of their stage

/**
 * @param {FlowNode} node
 * @returns {node is Staged}
 */
function isStaged(node) {
  return node.stage !== null && node.group !== null;
}

/**
 * Returns a module's stages. There are none if kernels run one by one.
 * @param {Module} module
 */
function stagesOf(module) {
  /** @type {Stages} */
  const stages = [];
  for (const node of module.flow.nodes.filter(isStaged)) {
    stages[node.stage] ??= [];
    stages[node.stage][node.group] ??= [];
    stages[node.stage][node.group].push(node);
  }
  return stages;
}

/**
 * @param {Stages} stages
 * @param {Staged} node
 */
function stageText(stages, node) {
  const groups = stages[node.stage].length;
  return `${node.stage + 1}${groups > 1 ? `, group ${node.group + 1} of ${groups}` : ""}`;
}

/**
 * Returns the names of what the other groups of a node's stage run at the same time.
 * @param {Stages} stages
 * @param {Staged} node
 */
function beside(stages, node) {
  return stages[node.stage].flatMap((group, i) => (i === node.group ? [] : group.map((n) => n.name)));
}

/**
 * Returns the row of every node, and its place in the row, counted from the middle. Without stages, a node's row is the
 * number of steps before the node, and a row is in the program's order.
 * @param {FlowNode[]} nodes
 * @param {Edge[]} edges
 * @param {Stages} stages
 */
function arranged(nodes, edges, stages) {
  if (stages.length) return arrangedByStage(nodes, stages);
  const row = nodes.map(() => 0);
  const column = nodes.map(() => 0);
  for (const [a, b] of [...edges].sort((x, y) => x[1] - y[1])) row[b] = Math.max(row[b], row[a] + 1);
  /** @type {number[][]} */
  const rows = [];
  for (const [i, at] of row.entries()) {
    rows[at] ??= [];
    rows[at].push(i);
  }
  for (const members of rows) spread(members, column);
  return { row, column };
}

/**
 * Arranges one stage below the other, and the groups of a stage side by side.
 * @param {FlowNode[]} nodes
 * @param {Stages} stages
 */
function arrangedByStage(nodes, stages) {
  const row = nodes.map(() => 0);
  const column = nodes.map(() => 0);
  let next = 1;
  for (const stage of stages) {
    for (const [g, group] of stage.entries())
      for (const [k, node] of group.entries()) {
        const i = nodes.indexOf(node);
        row[i] = next + k;
        column[i] = g - (stage.length - 1) / 2;
      }
    next += Math.max(...stage.map((group) => group.length));
  }
  for (const [i, node] of nodes.entries()) if (node.stage === null && node.kind !== "input") row[i] = next++;
  const inputs = nodes.flatMap((node, i) => (node.kind === "input" ? [i] : []));
  spread(inputs, column);
  return { row, column };
}

/**
 * Puts the members of a row side by side around the middle.
 * @param {number[]} members
 * @param {number[]} column
 */
function spread(members, column) {
  for (const [k, node] of members.entries()) column[node] = k - (members.length - 1) / 2;
}

/**
 * Draws a module's graph and its legend.
 * @param {Module} module
 * @param {number} id
 * @param {Layer[]} layers
 * @param {Stages} stages
 */
function graph(module, id, layers, stages) {
  const { nodes, edges } = module.flow;
  const { row, column } = arranged(nodes, edges, stages);
  const most = 1 + 2 * Math.max(...column);
  const width = Math.max(widthOf() - 20, most * (BOX + APART) + (stages.length ? 160 : 60));
  const svg = canvas(`graph-${id}`, width, (1 + Math.max(...row)) * DEEP + 10);
  svg.setAttribute("class", "wide");
  const at = nodes.map((_, i) => ({ x: width / 2 + column[i] * (BOX + APART), y: row[i] * DEEP + 24 }));
  /** @type {Drawing} */
  const drawing = { svg, module, layers, stages, at, free: at.map((p) => p.y), ...timesOf(module, layers) };
  drawFrames(drawing);
  for (const edge of edges) svg.append(draw("path", { class: "edge", d: pathOf(drawing, edge) }));
  const placed = nodes.map((node, i) => drawNode(drawing, node, i));
  const button = csvButton(`graph-${id}`, graphColumns(drawing), () => nodes.map((n, i) => ({ ...n, i })));
  const label = `Graph of ${short(module.model, 60)}`;
  const drawn = figure({ name: `graph-${id}`, label, svg, placed: [placed], button });
  const region = { tabindex: 0, role: "region", "aria-label": `graph of ${short(module.folder)}` };
  const scroll = el("div", { class: "scroll", id: `scroll-graph-${id}`, ...region });
  svg.replaceWith(scroll);
  scroll.append(svg);
  return [aboutGraph(nodes, stages), graphLegend(module), drawn];
}

/**
 * Returns the seconds of each node, their sum and the largest. A node's are its layer's, or where a profile has a
 * function's calls, those of its own call.
 * @param {Module} module
 * @param {Layer[]} layers
 */
function timesOf(module, layers) {
  /** @type {Map<string, number[]>} */
  const calls = new Map();
  for (const call of module.profile?.calls ?? [])
    calls.set(call.function, [...(calls.get(call.function) ?? []), call.seconds]);
  const kernels = layers.map(() => 0);
  for (const { operator } of module.flow.nodes) if (operator !== null) kernels[operator]++;
  const took = module.flow.nodes.map(({ operator, kind, name }) => {
    if (operator === null) return kind === "other" ? (calls.get(name)?.shift() ?? null) : null;
    const together = layers[operator].took; // of all kernels of the layer
    return together && together / kernels[operator];
  });
  const known = took.map((seconds) => seconds ?? 0);
  return { took, whole: known.reduce((sum, seconds) => sum + seconds, 0), most: Math.max(...known) };
}

/**
 * Draws frames around the stages that have several groups.
 * @param {Drawing} drawing
 */
function drawFrames({ svg, module, stages, at, free }) {
  const { nodes } = module.flow;
  for (const [s, groups] of stages.entries()) {
    if (groups.length < 2) continue;
    const places = groups.flat().map((node) => at[nodes.indexOf(node)]);
    const xs = places.map((p) => p.x);
    const ys = places.map((p) => p.y);
    const x = Math.min(...xs) - BOX / 2 - FRAME;
    const y = Math.min(...ys) - 25;
    const size = { width: Math.max(...xs) + BOX / 2 + FRAME - x, height: Math.max(...ys) + 25 - y };
    const told = { "data-stage": s, "data-groups": groups.length };
    svg.append(
      draw("rect", { class: "together", x, y, ...size, rx: 8, ...told }),
      draw("text", { x: x - 6, y: y + 15, "text-anchor": "end", class: "soft" }, `stage ${s + 1}`),
    );
    for (const group of groups) free[nodes.indexOf(group[group.length - 1])] = Math.max(...ys);
  }
}

/**
 * Returns the path of an edge. It goes straight down to where the space below its first node is free, and from there to
 * the next row. An edge of several rows goes round what lies between.
 * @param {Drawing} drawing
 * @param {Edge} edge
 */
function pathOf({ at, free: spaces }, edge) {
  const [a, b] = edge.map((i) => at[i]);
  const free = spaces[edge[0]];
  const steps = (b.y - free) / DEEP;
  const from = `M${a.x},${a.y + HALF}V${free + HALF}`;
  const to = `${b.x},${b.y - HALF}`;
  if (steps === 1) return `${from}L${to}`;
  const side = Math.max(a.x, b.x) + BOX * 0.75 + Math.min(40, 8 * steps);
  return `${from}C${side},${free + 50} ${side},${b.y - 50} ${to}`;
}

/**
 * @param {Drawing} drawing
 * @param {FlowNode} node
 * @param {number} i
 * @returns {Placed<FlowNode>}
 */
function drawNode({ svg, module, layers, stages, at, took, whole, most }, node, i) {
  const { x, y } = at[i];
  const { kind, device } = node;
  const layer = node.operator === null ? null : layers[node.operator];
  const name = kind === "output" ? "outputs" : kind === "copy" ? "copy" : node.name;
  const on = module.devices[device].short;
  const told = { "data-node": i, "data-kind": kind, "data-device": device };
  const turn = { "data-stage": node.stage, "data-group": node.group };
  const place = { x: x - BOX / 2, y: y - HALF, width: BOX, height: 2 * HALF, rx: kind === "kernel" ? 4 : 16 };
  const oncolour = kind === "copy" ? "oncolour" : null;
  const middle = { "text-anchor": "middle" };
  const share = whole ? (took[i] ?? 0) / whole : 0;
  const depth = digits((DEEPEST * (took[i] ?? 0)) / most, 3);
  const second = [secondLine(module, node, layer, took[i]), share >= 0.005 ? percent(share) : ""];
  const below = clip(second.filter(Boolean).join(", "), 34);
  svg.append(
    draw("rect", { class: `node ${kind} c${device % 7}`, ...place, ...told, ...turn }),
    share ? draw("rect", { class: "heat", "fill-opacity": depth, "data-share": share, ...place }) : "",
    draw("text", { x, y: y - 3, ...middle, class: oncolour }, clip(name, 26)),
    draw("text", { x, y: y + 12, ...middle, class: oncolour ?? (share ? null : "soft") }, below),
  );
  const layout = layer?.layout ?? "layout not known";
  const known = took[i] ? `; ${time(took[i])}, ${percent(share)} of the time` : "";
  const what = (layer ? `${layer.text}; ${layer.template ?? "no template"}; ${layout}` : kind) + known;
  const stage = isStaged(node) ? stageSentence(stages, node) : "";
  return { px: x, py: y, text: `${name} on ${on}: ${what}${stage}`, point: node };
}

/**
 * Returns what stands below the name of a node.
 * @param {Module} module
 * @param {FlowNode} node
 * @param {Layer | null} layer
 * @param {number | null} took
 */
function secondLine(module, node, layer, took) {
  const on = module.devices[node.device].short;
  if (!layer && node.kind === "copy") return `to ${on}`;
  const told = module.devices.length > 1 ? [on] : [];
  const layout = layer?.layout?.replace(/^(.+) -> \1$/, "$1");
  return [...told, ...(took ? [time(took)] : []), ...(layer ? [layout] : [node.kind])].filter(Boolean).join(", ");
}

/**
 * @param {Stages} stages
 * @param {Staged} node
 */
function stageSentence(stages, node) {
  const others = beside(stages, node).join(", ");
  return `; stage ${stageText(stages, node)}${others && `, at the same time as ${others}`}`;
}

/**
 * @param {Drawing} drawing
 * @returns {Column<FlowNode & { i: number }>[]}
 */
function graphColumns({ module, layers, stages }) {
  const reads = (/** @type {number} */ i) => module.flow.edges.filter((e) => e[1] === i).map((e) => e[0]);
  const counted = (/** @type {number | null} */ place) => (place === null ? null : place + 1);
  /** @type {Column<FlowNode>[]} */
  const turns = [
    { title: "stage", get: (n) => counted(n.stage) },
    { title: "group", get: (n) => counted(n.group) },
  ];
  return [
    { title: "node", get: (n) => n.i },
    { title: "name", get: (n) => n.name },
    { title: "kind", get: (n) => n.kind },
    { title: "device", get: (n) => module.devices[n.device].short },
    ...(stages.length ? turns : []),
    { title: "layout", get: (n) => (n.operator === null ? null : layers[n.operator].layout) },
    { title: "reads", get: (n) => reads(n.i).join(" ") },
  ];
}

/** @param {Module} module */
function graphLegend(module) {
  const entries = module.devices.map((d, i) => {
    const box = { width: 26, height: 12, viewBox: "0 0 26 12", "aria-hidden": "true", class: `c${i % 7}` };
    const sign = draw("svg", box, draw("rect", { class: "node", x: 1, y: 1, width: 24, height: 10 }));
    return el("li", null, sign, short(d.name, 60));
  });
  return el("ul", { class: "legend" }, entries);
}

/**
 * @param {FlowNode[]} nodes
 * @param {Stages} stages
 */
function aboutGraph(nodes, stages) {
  const count = (/** @type {FlowNode["kind"]} */ kind) => nodes.filter((n) => n.kind === kind).length;
  const kernels = `${many(count("kernel"), "kernel")} of templates, ${many(count("other"), "other function")} (dashed)`;
  const copies = count("copy") === 1 ? "1 copy" : `${count("copy")} copies`;
  const said = `As it was built: ${kernels}, ${copies} between devices (filled). A layer may be several kernels.`;
  const fill = " The more of the time a node takes, the deeper its fill.";
  const frames = " Stages run from top to bottom; columns of kernels in one frame run at the same time.";
  return el("p", { class: "soft" }, said, fill, stages.some((s) => s.length > 1) ? frames : "");
}
