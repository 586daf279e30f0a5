// Lists the records that devices use although they were measured elsewhere.

/** @type {Section["build"]} */
function reuse(data, view) {
  /** @type {Column<Reused>[]} */
  const columns = [
    { title: "task", get: (r) => r.text },
    { title: "used on", get: (r) => r.on },
    { title: "measured on", get: (r) => r.from },
    { title: "differs in", get: (r) => r.differs },
  ];
  const rows = data.reuse.filter((r) => passes(r, view));
  const said =
    "Configs that have not been measured on the device that uses them: what a device would use of the most similar " +
    "one of its family, or of what comes with the package, and layers of modules that were built so. Their own times " +
    "there are not known.";
  const none = data.reuse.length
    ? "None is left by the filters."
    : "None: every record here was measured on the device that uses it.";
  return [
    el("p", { class: "soft" }, said),
    rows.length ? table("reuse", "reused records", columns, rows, view) : el("p", null, none),
  ];
}

addSection("reuse", "How near reused records are", reuse);
