// Describes the JSON that tuner.report.page.collect returns, and the objects that the page's script makes of it. Times
// are in seconds, sizes in bytes, moments in seconds since 1970. `tools/javascript/check` reads this; the page does not.

// ---- What collect returns

interface Data {
  format: number;
  made: number;
  edgetune: string;
  database: string;
  devices: Device[];
  tasks: TaskRecord[];
  falls: Fall[];
  curves: Curve[];
  failures: Failure[];
  knobs: KnobView[];
  roofs: Roof[];
  drift: Drift[];
  pieces: Piece[];
  reuse: Reused[];
  modules: Module[];
  /** The state of the runs, of a page that `tune watch` serves: null until it has been asked for. */
  live?: Live | null;
}

/** What `tune quantize --json` prints, and its page shows. Ratios are in decibels, top-1 in per cent. */
interface QuantisedData {
  model: string;
  method: string;
  max_drop: number | null;
  min_sqnr: number | null;
  samples: { calibrated: number; judged: number };
  top1_is: "accuracy" | "agreement" | null;
  operators: QuantisedOperator[];
  float: Quality & { seconds: number | null };
  variants: QuantisedVariant[];
  chosen: QuantisedVariant;
  /** The device that the seconds are of, null if nothing was timed. */
  timed_on: string | null;
}

interface QuantisedOperator {
  name: string;
  type: string;
  multiply_adds: number;
  sqnr_alone: number | null;
  computed_in: "int8" | "float32";
  why: string;
}

interface QuantisedVariant {
  in_float: number;
  in_integers: number;
  share: number;
  quality: Quality;
  /** Seconds of an inference, null if that was not measured. */
  seconds: number | null;
}

interface Quality {
  sqnr: number;
  top1: number | null;
}

interface Device {
  name: string;
  kind: string;
  family: string;
  model: string;
  attrs: Record<string, unknown>;
}

interface TaskRecord {
  id: string;
  op: string;
  text: string;
  precision: string;
  device: number;
  trials: number;
  configs: number;
  failures: number;
  effort: number | null;
  building: number | null;
  running: number | null;
  began: number;
  first: number | null;
  flop: number | null;
  bytes: number | null;
  best: Best | null;
}

interface Best {
  seconds: number;
  template: string;
  knobs: string;
  error: number | null;
  marked: boolean;
  condition: string;
  searcher: string;
}

/** How the time of operators together has fallen: seconds of tuning, and seconds of an inference. */
interface Fall {
  name: string;
  device: number;
  points: [number, number][];
}

interface Curve {
  task: number;
  searcher: string;
  seed: number | null;
  trials: number;
  seconds: number;
  /** Trials, seconds since the task's first trial, and seconds a call, of every improvement. */
  points: [number, number, number][];
  failures: number;
  /** Trials, and seconds since the task's first trial, of failures: of all, or evenly drawn. */
  failed: [number, number][];
}

interface Failure {
  kind: string;
  template: string;
  count: number;
  /** Indices of tasks, and how many of their trials failed so. */
  tasks: [number, number][];
  examples: Example[];
}

interface Example {
  id: number;
  task: number;
  knobs: string;
  message: string;
  when: number;
}

interface KnobView {
  task: number;
  template: string;
  of: number;
  names: string[];
  values: string[][];
  importance: number[];
  /** The index of each knob's value, then the seconds. */
  rows: number[][];
}

interface Roof {
  device: number;
  precision: string;
  measured: boolean;
  flops: number | null;
  bytes_per_second: number | null;
}

interface Drift {
  device: number;
  began: number;
  ended: number;
  /** Trials of each part of the span, and those of them that are marked. */
  bins: [number, number][];
  marked: number;
  repeated: number;
  /** Seconds since the first trial, times the config's first measurement, and 1 if it is marked. */
  repeats: [number, number, number][];
}

interface Piece {
  op: string;
  text: string;
  device: number;
  seconds: number;
}

interface Near {
  from: string;
  differs: string;
}

interface Reused extends Near {
  op: string;
  text: string;
  device: number | null;
  on: string;
}

interface Live {
  paused: boolean;
  running: { id: string; text: string; device: string; owner: string; candidates: number }[];
}

/** What the page asks of the runs. */
interface Wish {
  wish: "pause" | "resume" | "skip";
  task?: string;
}

interface Module {
  folder: string;
  model: string;
  dtype: string;
  threads: number;
  sizes: Sizes | null;
  devices: { name: string; short: string; title: string }[];
  vendors: string[];
  layers: LayerRecord[];
  profile: Profile | null;
  bench: Bench | null;
  flow: { nodes: FlowNode[]; edges: Edge[] };
}

/** Bytes that a module takes. */
interface Sizes {
  weights: number;
  kernels: number;
  inference: number | null;
  peak: number | null;
}

interface LayerRecord {
  node: string;
  text: string;
  precision: string;
  template: string | null;
  knobs: string | null;
  layout: string | null;
  device: number;
  seconds: number | null;
  error: number | null;
  flop: number | null;
  bytes: number | null;
  source: string;
  near: Near | null;
  peers: Record<string, number>;
}

interface Profile {
  /** Operations a second by precision. */
  peaks: Record<string, number>;
  calls: { name: string; function: string; seconds: number }[];
}

interface Bench {
  threads: number;
  contenders: Contender[];
}

interface Contender {
  name: string;
  version: string;
  median_seconds: number;
  /** By "50", "90" and "99"; empty where single runs are not known. */
  percentile_seconds: Record<string, number>;
  process_peak_bytes: number | null;
}

interface FlowNode {
  name: string;
  kind: "input" | "kernel" | "other" | "copy" | "output";
  device: number;
  operator: number | null;
  stage: number | null;
  group: number | null;
}

/** Indices of two nodes: the second reads what the first wrote. */
type Edge = [number, number];

// ---- What sections show

/** A part of the page. `build` returns what it shows. */
interface Section {
  id: string;
  title: string;
  build(data: Data, view: View): Child;
}

/** What the user has chosen. It stays while the page is drawn anew, which `again` does. */
interface View {
  device: string;
  op: string;
  text: string;
  task: number;
  clock: string;
  tables: Record<string, TableState>;
  kind?: string;
  knobs?: number;
  across?: string;
  down?: string;
  /** Draws the sections anew. The element with the id `focus` gets the focus. */
  again(focus?: string): void;
}

interface TableState {
  sort: string | null;
  down: boolean;
  filter: string;
  page: number;
}

/** A task with its index in `Data.tasks` as `id`. */
interface Task extends Omit<TaskRecord, "id"> {
  id: number;
}

type Verified = Task & { best: Best };
type Counted = Verified & { flop: number; bytes: number };
type Spent = Task & { effort: number; building: number; running: number };

/** What the filters of the page apply to. */
type Filtered = Pick<Reused, "op" | "text" | "device">;

// ---- What the shared scripts take

type Value = string | number | null | undefined;
type Child = Node | string | number | false | null | undefined | Child[];
type Attributes = Record<string, string | number | boolean | null | undefined | ((event: Event) => void)>;

/**
 * A column of a table. `get` returns what is sorted and exported, and shown if there is no `text`. A column of numbers
 * is aligned to the right, and sorted with the largest first. A text that is long is folded if the column `opens`.
 */
interface Column<Row> {
  title: string;
  number?: boolean;
  get(row: Row): Value;
  text?(row: Row): Value;
  opens?: boolean;
}

/** A row of bars. */
interface Bar {
  name: string;
  value: number;
  text: string;
}

interface Axis {
  title: string;
  log?: boolean;
  /** Returns the text of a tick. */
  text?(value: number): string;
}

interface Point {
  x: number;
  y: number;
  /** Tells what the point is, to whoever walks through the chart. */
  text: string;
  /** Stands beside the mark. */
  label?: string;
  task?: number;
}

interface Series {
  name: string;
  points: Point[];
  line?: boolean;
  /** Draws the line as steps. */
  step?: boolean;
  /** False leaves the marks out. */
  marks?: boolean;
}

interface ChartOptions {
  height?: number;
  /** More values that the axes have to show. */
  xs?: number[];
  ys?: number[];
  /** Draws what stands behind the points. */
  roof?(svg: SVGSVGElement, x: Scale, y: Scale): void;
  /** Is called with the point that the user chooses. */
  pick?(point: Point): void;
}

/** Returns the place of a value, in pixels. */
interface Scale {
  (value: number): number;
  ticks: number[];
  ends: [number, number];
  /** Tells whether the scale can show a value. */
  has(value: number): boolean;
}

/** A mark of a figure: its place in pixels, its text, and what it shows. */
interface Placed<What> {
  px: number;
  py: number;
  text: string;
  point: What;
}

interface Figure<What> {
  name: string;
  label: string;
  svg: SVGSVGElement;
  /** Lists of marks that the arrow keys walk through. */
  placed: Placed<What>[][];
  legend?: Child;
  /** The button that exports the figure. */
  button: HTMLElement;
  pick?(point: What): void;
}

/** A cell of a map of two knobs: the indices of their values, the best seconds, and the number of trials. */
interface HeatCell {
  i: number;
  j: number;
  value: number;
  count: number;
}

interface HeatAxis {
  name: string;
  values: string[];
}

// ---- Modules

type Staged = FlowNode & { stage: number; group: number };

/** Nodes by stage and by group, in their order. Groups of a stage run at the same time. */
type Stages = Staged[][][];

interface Layer extends LayerRecord {
  /** Seconds in a whole inference. */
  measured: number | null;
  /** `measured` if that is known, otherwise the seconds of the stored trial. */
  took: number | null;
  /** The share of the device's peak in the layer's precision, null if that or the time is not known. */
  share: number | null;
  turn: Staged | null;
}

/** A module's graph with the place of every node in pixels, and down to where the space below each is free. */
interface Drawing {
  svg: SVGSVGElement;
  module: Module;
  layers: Layer[];
  stages: Stages;
  at: { x: number; y: number }[];
  free: number[];
  /** Seconds of each node, null where they are not known. */
  took: (number | null)[];
  /** Their sum, and the largest. */
  whole: number;
  most: number;
}
