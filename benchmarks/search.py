"""This benchmark compares searchers with each other and with random search, on recorded spaces.

    python benchmarks/search.py [--quick] [--json] [--seeds 20] [--trials 400] [--searchers NAME ...]
                                [--spaces FILE ...] [--plots DIR]

It reports the trials and simulated seconds until a search reaches 90, 95 and 99 % of the best throughput, and the score
P. Every searcher runs on every space with every seed. Measurements are drawn from the recorded times. The result of a
search after t trials is what a session that ended then would deliver: the best of the few fastest configs, which a
session compares at its end. There are four modes:

seeds          the search begins with the templates' seed configs
bare           it has no seed configs and no suggestions, which shows what the search itself is worth
transfer       `auto` knows the trials of earlier searches of other workloads, on the same device and of the same
               template, but none of its own workload
bare transfer  the same without seed configs

P compares a search with random search: P(t) = (random(t) - found(t)) / (random(t) - optimum), averaged over trial
counts that double. 1 is perfect, and 0 is as good as random. A searcher whose extra is missing is skipped and named.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from statistics import mean, median
from typing import Any

from templates.space import context_distance
from tuner.errors import BadInput
from tuner.measure.replay.recorded import SUFFIX, RecordedSpace, read
from tuner.search import Experience, make_searcher, searcher_names
from tuner.session.experience import NEAREST, TRIALS, akin
from tuner.session.replaying import Replayed, reached
from tuner.session.replaying import replay as run_replay

FOLDER = Path(__file__).with_name("spaces")
MODES = ("seeds", "bare")
UNSEEDED = ("random", "autotvm_ga", "autotvm_xgb")  # take no seed configs, so they only run "bare"
EARLIER = 1_000_003  # the random seed of the earlier searches that a transfer starts from
TRANSFER = {"seeds": "transfer", "bare": "bare transfer"}


@dataclass(frozen=True)
class Job:
    path: Path
    searcher: str
    seed: int
    trials: int
    mode: str  # of MODES, or of TRANSFER with `others`
    others: tuple[Path, ...] = ()


@cache
def _space(path: Path, bare: bool) -> RecordedSpace:
    found = read(path)
    return replace(found, spaces=tuple(replace(s, seeds=()) for s in found.spaces)) if bare else found


@cache
def _experience(path: Path, bare: bool) -> Experience:
    """Return the experience that an earlier search with `auto` would have left of one space."""
    space = _space(path, bare)
    return Experience(space.space, run_replay(space, "auto", seed=EARLIER, trials=TRIALS).trials)


def _run(job: Job) -> tuple[Job, Replayed]:
    bare = job.mode.startswith("bare")
    space = _space(job.path, bare)
    known = [
        replace(_experience(p, bare), distance=context_distance(space.context, _space(p, False).context))
        for p in job.others
    ]
    known.sort(key=lambda e: e.distance)
    found = run_replay(space, job.searcher, job.seed, job.trials, experience=known[:NEAREST])
    return job, replace(found, trials=())  # without the trials, which need not travel between processes


def _jobs(given: argparse.Namespace, searchers: Sequence[str]) -> list[Job]:
    jobs = []
    for path in given.spaces:
        for seed in range(given.seeds):
            for mode in MODES:
                taking = [n for n in searchers if mode == "bare" or n not in UNSEEDED]
                jobs += [Job(path, name, seed, given.trials, mode) for name in taking]
            kin = tuple(p for p in given.spaces if p != path and _related(p, path))
            if kin:
                jobs += [Job(path, "auto", seed, given.trials, mode, kin) for mode in TRANSFER.values()]
    return jobs


def _related(a: Path, b: Path) -> bool:
    one, other = _space(a, False), _space(b, False)
    return one.device == other.device and akin(one.space, other.space)


def _usable(names: Sequence[str], path: Path) -> tuple[list[str], dict[str, str]]:
    """Return the searchers that can be made here, and the reasons why the others cannot."""
    good, skipped = [], {}
    for name in names:
        try:
            make_searcher(name, _space(path, False).space, 0)
            good.append(name)
        except BadInput as error:
            skipped[name] = str(error)
    return good, skipped


def _score(found: Sequence[Replayed], chance: Sequence[Replayed], trials: int, worst: float) -> float:
    """Return P, as the module's docstring defines it. A search that has found nothing yet counts as `worst`."""
    points = [2**i for i in range(3, trials.bit_length()) if 2**i <= trials]

    def at(runs: Sequence[Replayed], t: int) -> float:
        return mean(min(r.delivered[min(t, len(r.delivered)) - 1], worst) for r in runs)

    scores = []
    for t in points:
        base, optimum = at(chance, t), chance[0].optimum
        if base > optimum:
            scores.append((base - at(found, t)) / (base - optimum))
    return mean(scores) if scores else 0.0


def _rows(results: Mapping[tuple[Path, str, str], list[Replayed]], trials: int) -> list[dict[str, Any]]:
    rows = []
    for (path, mode, name), runs in results.items():
        chance = results.get((path, "bare", "random"))
        worst = max(s for s in _space(path, False).medians.values() if math.isfinite(s))
        rows.append(
            {
                "space": path.name.removesuffix(SUFFIX),
                "mode": mode,
                "searcher": name,
                **reached(runs),
                "censored_at": trials,
                "p_score": None if chance is None else _score(runs, chance, trials, worst),
                "own_share_of_time": median(r.own_seconds / r.clock[-1] for r in runs if r.clock[-1] > 0),
            }
        )
    return rows


def _ratio(
    rows: list[dict[str, Any]], ours: tuple[str, str], base: tuple[str, str], share: float = 0.95
) -> float | None:
    """Return how many trials `ours` needs to a share of the best throughput, divided by those of `base`.

    It is the geometric mean over the spaces: below 1 `ours` needs fewer. A search that never got there counts as one
    trial more than all.
    """
    found: dict[str, dict[tuple[str, str], float]] = defaultdict(dict)
    for row in rows:
        value = row["trials_to"][str(share)]
        found[row["space"]][(row["mode"], row["searcher"])] = value if value is not None else row["censored_at"] + 1
    logs = [math.log(v[ours] / v[base]) for v in found.values() if ours in v and base in v]
    return math.exp(mean(logs)) if logs else None


def _summary(rows: list[dict[str, Any]], searchers: Sequence[str]) -> dict[str, Any]:
    def score(name: str, mode: str) -> float | None:
        scores = [r["p_score"] for r in rows if (r["searcher"], r["mode"]) == (name, mode) and r["p_score"] is not None]
        return mean(scores) if scores else None

    ratios = {}
    for share in (0.95, 0.99):
        for name in (n for n in searchers if n != "auto"):
            start, mode = f"trials_to_{100 * share:.0f}_auto_vs_{name}", "bare" if name in UNSEEDED else "seeds"
            ratios[start] = _ratio(rows, ("seeds", "auto"), (mode, name), share)
            ratios[f"{start}_bare"] = _ratio(rows, ("bare", "auto"), ("bare", name), share)
    return {
        **ratios,
        "transfer_gain": _ratio(rows, ("seeds", "auto"), ("transfer", "auto")),
        "transfer_gain_bare": _ratio(rows, ("bare", "auto"), ("bare transfer", "auto")),
        **{f"p_score_{name}": score(name, "seeds") for name in searchers if name not in UNSEEDED},
        **{f"p_score_{name}_bare": score(name, "bare") for name in searchers},
    }


def _plot(results: Mapping[tuple[Path, str, str], list[Replayed]], folder: Path) -> None:
    """Draw a picture for each space and mode: the median share of the best throughput over trials, with quartiles."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted({p for p, _, _ in results}):
        for mode in MODES:
            figure, axes = pyplot.subplots(figsize=(7, 4.5))
            for (_, _, name), runs in sorted((k, v) for k, v in results.items() if k[:2] == (path, mode)):
                length = min(len(r.delivered) for r in runs)
                shares = [sorted(r.optimum / r.delivered[t] for r in runs) for t in range(length)]
                trials = range(1, length + 1)
                (line,) = axes.plot(trials, [s[len(s) // 2] for s in shares], label=name)
                low, high = [s[len(s) // 4] for s in shares], [s[-len(s) // 4] for s in shares]
                axes.fill_between(trials, low, high, alpha=0.12, color=line.get_color())
            stem = path.name.removesuffix(SUFFIX)
            axes.set(title=f"{stem} ({mode})", xlabel="trials", ylabel="share of the best throughput", ylim=(0.5, 1.01))
            axes.set_xscale("log", base=2)
            axes.grid(alpha=0.3)
            axes.legend()
            figure.tight_layout()
            figure.savefig(folder / f"{stem}.{mode}.png", dpi=110)
            pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three seeds, 128 trials, two spaces")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--trials", type=int, default=400)
    parser.add_argument("--searchers", nargs="*", default=[n for n in searcher_names() if n != "grid"])
    parser.add_argument("--spaces", nargs="*", type=Path, default=sorted(FOLDER.glob(f"*{SUFFIX}")))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--plots", type=Path)
    given = parser.parse_args()
    if given.quick:
        given.seeds, given.trials, given.spaces = 3, 128, given.spaces[:2]
    if not given.spaces:
        sys.exit(f"no recorded spaces in {FOLDER}: see benchmarks/record_spaces.py")
    searchers, skipped = _usable(given.searchers, given.spaces[0])
    if given.plots and find_spec("matplotlib") is None:
        skipped["plots"], given.plots = "pip install matplotlib", None
    for name, why in skipped.items():
        print(f"skipped {name}: {why}", file=sys.stderr)
    results: dict[tuple[Path, str, str], list[Replayed]] = defaultdict(list)
    with ProcessPoolExecutor(given.workers) as pool:
        for done, (job, found) in enumerate(pool.map(_run, jobs := _jobs(given, searchers)), 1):
            results[(job.path, job.mode, job.searcher)].append(found)
            if done % 50 == 0:
                print(f"{done} of {len(jobs)} searches", file=sys.stderr, flush=True)
    rows = _rows(results, given.trials)
    for row in rows:
        shares = "  ".join(f"{s}: {'never' if v is None else f'{v:g}':>6}" for s, v in row["trials_to"].items())
        score = "-" if row["p_score"] is None else f"{row['p_score']:.2f}"
        print(f"{row['space']:34} {row['mode']:13} {row['searcher']:14} {shares}  P {score}", file=sys.stderr)
    summary = _summary(rows, searchers)
    for name, value in summary.items():
        print(f"{name:40} {'-' if value is None else f'{value:.3f}'}", file=sys.stderr)
    if given.plots:
        _plot(results, given.plots)
    if given.json:
        machine = {"platform": platform.platform(), "seeds": given.seeds, "trials": given.trials, "skipped": skipped}
        print(json.dumps({"summary": summary, "rows": rows, "machine": machine}))


if __name__ == "__main__":
    main()
