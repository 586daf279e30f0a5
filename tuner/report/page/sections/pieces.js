// Lists the pieces that plans measured: steps, transforms and copies.

/** @type {Section["build"]} */
function pieces(data, view) {
  /** @type {Column<Piece>[]} */
  const columns = [
    { title: "what", get: (p) => p.op },
    { title: "piece", get: (p) => p.text },
    { title: "device", get: (p) => data.devices[p.device].name },
    { title: "time", number: true, get: (p) => p.seconds, text: (p) => time(p.seconds) },
  ];
  const rows = data.pieces.filter((p) => passes(p, view));
  const said = "What plans have measured: other steps of networks, transforms of layouts, copies between devices.";
  return [el("p", { class: "soft" }, said), table("pieces", "pieces", columns, rows, view)];
}

addSections((data) => (data.pieces.length ? [{ id: "pieces", title: "Pieces of networks", build: pieces }] : []));
