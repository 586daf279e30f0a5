// Draws when trials were measured, and how the times of repeated ones changed.

function drift(data, view) {
  const shownOnes = data.drift.filter((d) => view.device === "" || d.device === Number(view.device));
  if (!shownOnes.length) return [el("p", null, "There is no trial yet.")];
  return shownOnes.map((d) => {
    const name = short(data.devices[d.device].name), step = (d.ended - d.began) / d.bins.length || 1;
    const rateOf = (count) => (60 * count) / step;
    const points = (which, what) => d.bins.map((b, i) => ({ x: i * step, y: rateOf(b[which]), text: `${when(d.began + i * step)}: ${b[which]} ${what}` }));
    const again = (marked, title) => ({ name: title, points: d.repeats.filter((r) => Boolean(r[2]) === marked).map(([at, ratio]) => ({ x: at, y: ratio,
      text: `${when(d.began + at)}: ${digits(ratio, 3)} times the config's first measurement${marked ? ", marked" : ""}` })) });
    const repeats = [again(false, "not marked"), again(true, "marked")].filter((s) => s.points.length);
    return [
      el("h3", null, name),
      el("p", { class: d.marked ? "warn" : "soft" }, `${d.marked.toLocaleString("en")} trials are marked: measured while the device did not keep its speed (its system slowed it down, or a kernel that never changes changed its time by more than a tenth). `,
        `From ${when(d.began)} to ${when(d.ended)}.`),
      chart(`rate-${d.device}`, `Trials a minute on ${name}`, { title: "seconds since the first trial" }, { title: "trials a minute" },
        [{ name: "all", line: true, marks: false, points: points(0, "trials") }, { name: "marked", line: true, marks: false, points: points(1, "marked trials") }], view, { height: 220 }),
      repeats.length ? [el("p", { class: "soft" }, `${d.repeated.toLocaleString("en")} times a config was measured again: over the first time it was.`),
        chart(`drift-${d.device}`, `Measured again on ${name}`, { title: "seconds since the first trial" }, { title: "times its first measurement", log: true }, repeats, view, { ys: [0.9, 1.1], height: 260 })] : null,
    ];
  });
}

addSection("drift", "Drift and clocks", drift);
