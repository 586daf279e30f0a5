"""This benchmark repeats the tables of two papers on placement with simulated devices, and checks the simulator.

    python benchmarks/placement.py [--quick] [--parts table search optimum learned] [--networks nmt ...]
                                   [--devices 4 8 ...] [--seconds 12.5] [--json]
    python benchmarks/placement.py --parts soc [--quick] [--profiles deeplens aisage jetson-nano]
                                   [--models squeezenet1.0 ...] [--most-parts 4] [--seed 0] [--json]
    python benchmarks/placement.py --parts measured [--model squeezenet1.0] [--on opencl:0,cpu] [--placements 12]
                                   [--splits 0] [--minutes 1] [--rounds 6] [--seed 0] [--folder DIR] [--json]

The papers are Jia, Zaharia and Aiken, "Beyond Data and Model Parallelism for Deep Neural Networks", and Mirhoseini et
al., "Device Placement Optimization with Reinforcement Learning". The parts compare:

table    the delta simulation algorithm with the full one (Jia et al., table 4). A chain of proposals starts from a
         random strategy, and the result is milliseconds of CPU time per proposal. "full" is algorithm 1, which builds
         the task graph from the strategy and has only cached times of operators, like the paper's. "cached" also has
         cached blocks of the graph, which the delta algorithm has too. "simulate" is algorithm 1 on a finished graph.
         The full algorithm is timed at every tenth proposal, where both must give the same timeline.
search   strategies found by Markov chains with the baselines (Jia et al., section 8.2). The chains start from data
         parallelism and from the expert's strategy, as a random start would take time from these. The result is then
         made locally optimal. "optimal" says that every neighbour was tried and none is faster.
optimum  Markov chains with an exhaustive search, for LeNet and two steps of RNNLM on 4 devices (Jia et al., section
         8.4).
learned  REINFORCE (Mirhoseini et al., table 2) with the expert's placement, with METIS on all devices and on GPUs only
         (the paper has Scotch and MinCut), and with Markov chains, on 2 and 4 K80 with a CPU. It needs the extras `rl`
         and `metis`. The batch of Inception-v3 is 32, as in section 4.2 of the paper. Those of RNNLM and NMT are 64,
         because the number is missing in the text that we have.
soc      both devices of a simulated chip, whose GPU and CPU share a memory, with the better one alone, for inference at
         batch 1. The bounds come from measured errors (socs.py). This part runs only if --parts names it.
measured simulated seconds with those of built modules, for random placements of a network of the zoo on devices of this
         machine (placed.py), after --minutes of tuning for each device. This part runs only if --parts names it.

The time limits of searches count CPU seconds of one core, not the clock, because the machine may have other work. No
GPU was used here: except for "measured", times are those that the simulator predicts from the peaks in data sheets.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tuner.errors import BadInput
from tuner.studies.baselines import strategy_of
from tuner.studies.descent import is_local_optimum
from tuner.studies.exhaustive import Proof, fastest
from tuner.studies.mcmc import Options, search
from tuner.studies.networks import Network, network
from tuner.studies.simulator import Simulator
from tuner.studies.soap import random_config, random_strategy
from tuner.studies.topology import topology_of

SIX = ("alexnet", "resnet101", "inception_v3", "rnntc", "rnnlm", "nmt")
# Jia et al., table 4: time of the full algorithm over that of the delta algorithm, for 4, 8, 16, 32 and 64 GPUs.
PAPER = {
    "alexnet": (2.9, 3.0, 2.9, 3.0, 3.0),
    "resnet101": (3.2, 3.2, 3.1, 3.2, 3.3),
    "inception_v3": (3.4, 3.9, 5.0, 5.9, 6.9),
    "rnntc": (2.2, 2.3, 2.4, 2.6, 3.0),
    "rnnlm": (2.3, 2.5, 2.7, 3.2, 3.6),
    "nmt": (2.5, 2.7, 3.0, 3.8, 4.1),
}
CHIPS = ("deeplens", "aisage", "jetson-nano")
STARTS = ("data_parallel", "expert")
PLACEMENTS = ("cpu", "gpu", "metis_all", "metis", "expert_placement")  # baselines of Mirhoseini et al., table 2
# The networks of Mirhoseini et al. Their Inception-v3 has another batch than that of Jia et al.
LEARNED: dict[str, dict[str, int]] = {"rnnlm": {}, "nmt": {}, "inception_v3": {"batch": 32}}
Row = dict[str, Any]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def table(given: argparse.Namespace) -> Iterator[Row]:
    for name in given.networks:
        for count in given.devices or ((4, 8) if given.quick else (4, 8, 16, 32, 64)):
            row = one_cell(network(name), count, 100 if given.quick else 1000)
            sizes = (4, 8, 16, 32, 64)
            row["paper"] = PAPER[name][sizes.index(count)] if count in sizes else None
            say(
                "{network} on {devices}: {tasks} tasks, delta {delta_ms:.2f} ms, full {full_ms:.2f}, cached "
                "{cached_ms:.2f}, simulate {simulate_ms:.2f}: {ratio:.1f} times (paper {paper})".format(**row)
            )
            yield row


def one_cell(net: Network, count: int, proposals: int) -> Row:
    """Time a chain of proposals as the search makes it.

    Every tenth proposal is also simulated in full, as a chain without the delta algorithm would do it.
    """
    topology, rng, clock = topology_of(f"p100:{count}"), random.Random(0), time.thread_time
    chain, whole = (Simulator(net, topology, training=True) for _ in range(2))
    chain.start(random_strategy(net, topology, rng))
    whole.start(chain.strategy)
    spent = {"delta": 0.0, "full": 0.0, "cached": 0.0, "simulate": 0.0}
    compared = done = 0
    while done < proposals:
        operator = rng.randrange(len(net.operators))
        change = {operator: random_config(net.operators[operator], topology, rng)}
        limit = chain.seconds * (1 + 0.0005 * -math.log(1 - rng.random()))
        began = clock()
        found = chain.propose(change)
        spent["delta"] += clock() - began
        if found == math.inf:  # the strategy does not fit into the memories, so neither algorithm simulates it
            continue
        done += 1
        if done % 10 == 0:
            strategy = list(chain.strategy)
            strategy[operator] = change[operator]
            whole.blocks.forget()
            for key, run in (("full", lambda s=strategy: whole.start(s)), ("cached", lambda s=strategy: whole.start(s)),
                             ("simulate", whole.simulate)):  # fmt: skip
                began = clock()
                again = run()
                spent[key] += 10 * (clock() - began)
            if again != found or whole.timeline() != chain.timeline():
                raise SystemExit(f"{net.name} on {count}: the timelines differ")
            compared += 1
        if found <= limit:
            chain.accept()
        else:
            chain.reject()
    per = {f"{key}_ms": 1e3 * value / done for key, value in spent.items()}
    ratio = per["full_ms"] / per["delta_ms"]
    return {"network": net.name, "devices": count, "tasks": chain.tasks, "compared": compared, **per, "ratio": ratio}


def searched(given: argparse.Namespace) -> Iterator[Row]:
    for name in given.networks:
        for count in given.devices or ((2, 4) if given.quick else (2, 4, 8)):
            net, topology = network(name), topology_of(f"p100:{count}")
            simulator, rng = Simulator(net, topology, training=True), random.Random(0)
            starts = {start: strategy_of(start, net, topology) for start in ("single", *STARTS)}
            row: Row = {"network": name, "devices": count}
            row |= {start: simulator.start(strategy) for start, strategy in starts.items()}
            del starts["single"]
            began, cpu = time.monotonic(), time.process_time()
            options = Options(seconds=given.seconds / len(starts), threads=given.threads)
            found = search(Simulator(net, topology, training=True), starts, rng, options=options)
            row |= {"start": found.start, "reached": found.reached}
            row |= {"found": found.seconds, "seconds": time.monotonic() - began, "cpu_s": time.process_time() - cpu}
            simulator.start(found.strategy)
            row |= {"proposals": found.proposals, "optimal": is_local_optimum(simulator)}
            row |= {f"vs_{start}": row[start] / found.seconds for start in STARTS}
            say(
                "{network} on {devices}: {0:.3f} ms in {seconds:.1f} s (CPU {cpu_s:.1f}; {proposals} proposals), "
                "{vs_data_parallel:.2f} times data parallelism, {vs_expert:.2f} times the expert; local optimum: "
                "{optimal}".format(1e3 * found.seconds, **row)
            )
            yield row


def optimum(given: argparse.Namespace) -> Iterator[Row]:
    for name, more in (("lenet", {}), ("rnnlm", {"steps": 2})):
        net, topology = network(name, **more), topology_of("p100:2" if given.quick else "p100:4")
        starts = {start: strategy_of(start, net, topology) for start in STARTS}
        options = Options(proposals=20_000 if given.quick else 150_000, temperature=0.005, tempering=4)
        began = time.monotonic()
        found = search(Simulator(net, topology, training=True), starts, random.Random(0), options=options)
        took, began = time.monotonic() - began, time.monotonic()

        def tell(proof: Proof, name: str = name) -> bool:
            if proof.nodes % 20_000 == 0:
                say(f"{name}: {proof.nodes} beginnings, {proof.leaves} strategies, {1e6 * proof.seconds:.3f} us")
            return True

        # The exhaustive search starts from data parallelism and not from the chains' result, to be independent of it.
        proof = fastest(Simulator(net, topology, training=True), starts["data_parallel"], tell)
        row = {"network": name, "space": proof.space, "found": found.seconds, "least": proof.seconds, "chains_s": took}
        row |= {"proof_s": time.monotonic() - began, "simulated": proof.leaves, "same": found.seconds == proof.seconds}
        times = 1e6 * found.seconds, 1e6 * proof.seconds
        say(
            "{network}: chains {0:.3f} us in {chains_s:.1f} s; the least of {space:.2g} strategies is {1:.3f} us, "
            "proved in {proof_s:.1f} s with {simulated} simulated".format(*times, **row)
        )
        yield row


def learned(given: argparse.Namespace) -> Iterator[Row]:
    try:
        from tuner.studies.learned import Settings, learn
    except BadInput as error:
        say(f"learned placement is skipped: {error}")
        return
    for name in [n for n in LEARNED if n in given.networks]:
        for count in (2, 4):
            net, topology = network(name, **LEARNED[name]), topology_of(f"k80-cpu:{count}")
            simulator = Simulator(net, topology, training=True)
            row: Row = {"network": name, "devices": count, "batch": net.operators[0].shape[0]}
            for start in PLACEMENTS:
                try:
                    row[start] = simulator.start(strategy_of(start, net, topology))
                except BadInput as error:
                    say(f"{start} is skipped: {error}")
            began = time.monotonic()
            settings = Settings(updates=20 if given.quick else 300)
            found = learn(simulator, settings, random.Random(0))
            row |= {"learned": found.seconds, "learned_s": time.monotonic() - began, "samples": found.samples}
            began = time.monotonic()
            options = Options(seconds=given.seconds / 2)
            starts = {s: strategy_of(s, net, topology) for s in ("gpu", "expert_placement")}
            chains = search(simulator, starts, random.Random(0), options=options)
            row |= {"mcmc": chains.seconds, "mcmc_s": time.monotonic() - began}
            row["vs_expert"] = row["expert_placement"] / found.seconds
            beside = ", ".join(f"{start} {row[start]:.3f}" for start in PLACEMENTS if start in row)
            say(
                "{network} (batch {batch}) on {devices} K80, seconds: {0}, learned {learned:.3f} ({learned_s:.0f} s, "
                "{samples} samples), chains over splits {mcmc:.3f} ({mcmc_s:.0f} s)".format(beside, **row)
            )
            yield row


def soc(given: argparse.Namespace) -> Iterator[Row]:
    import socs  # imported here, because it needs TVM

    yield from socs.socs(given)


def measured(given: argparse.Namespace) -> Iterator[Row]:
    import placed  # imported here, because it needs TVM and devices

    yield from placed.measured(given)


SIMULATED = {"table": table, "search": searched, "optimum": optimum, "learned": learned}
PARTS = {**SIMULATED, "soc": soc, "measured": measured}


def summary(rows: dict[str, list[Row]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if rows.get("table"):
        ratios = [r["ratio"] for r in rows["table"]]
        found |= {"delta_vs_full_min": min(ratios), "delta_vs_full_max": max(ratios)}
    if rows.get("search"):
        found["mcmc_seconds_max"] = max(r["seconds"] for r in rows["search"])
        found["all_locally_optimal"] = all(r["optimal"] for r in rows["search"])
        for row in rows["search"]:
            found[f"vs_expert_{row['network']}"] = row["vs_expert"]  # the last is that of the most devices
    if rows.get("optimum"):
        found["global_optima"] = all(r["same"] for r in rows["optimum"])
    for row in rows.get("learned", ()):
        found[f"learned_vs_expert_{row['network']}_{row['devices']}"] = row["vs_expert"]
    if rows.get("soc"):
        import socs

        found |= socs.summary(rows["soc"])
    if rows.get("measured"):
        import placed

        found |= placed.summary(rows["measured"])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer proposals and devices")
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=list(SIMULATED))
    parser.add_argument("--networks", nargs="*", choices=SIX, default=list(SIX))
    parser.add_argument("--devices", nargs="*", type=int, help="numbers of GPUs (default: the papers')")
    parser.add_argument(
        "--seconds", type=float, default=12.5, help="for the chains of a search; descents have twice as long"
    )
    parser.add_argument("--threads", type=int, default=2, help="of a search (default: 2)")
    parser.add_argument("--profiles", nargs="*", choices=CHIPS, help="soc: which (default: all)")
    parser.add_argument("--models", nargs="*", help="soc: of its networks (default: all)")
    parser.add_argument("--most-parts", type=int, default=4, help="soc: into how many a step may be split")
    parser.add_argument("--model", default="squeezenet1.0", help="measured: of the zoo")
    parser.add_argument("--on", default="opencl:0,cpu", metavar="D,D", help="measured: two devices that are here")
    parser.add_argument("--placements", type=int, default=12, help="measured: how many")
    parser.add_argument("--splits", type=int, default=0, help="measured: how many with steps in parts, besides")
    parser.add_argument("--minutes", type=float, default=1.0, help="measured: of tuning, for each device")
    parser.add_argument("--rounds", type=int, default=32, help="measured: alternated blocks of runs of each placement")
    parser.add_argument("--seed", type=int, default=0, help="measured: of the placements; soc: of chains and draws")
    parser.add_argument("--folder", type=Path, help="measured: what was written stays there, and a second run goes on")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output at the end")
    given = parser.parse_args()
    rows = {part: list(PARTS[part](given)) for part in given.parts}
    found = summary(rows)
    for name, value in found.items():
        say(f"{name}: {value:.2f}" if isinstance(value, float) else f"{name}: {value}")
    if given.json:
        machine = {"processor": platform.processor() or platform.machine(), "python": platform.python_version()}
        print(json.dumps({"summary": found, "rows": rows, "machine": machine}))


if __name__ == "__main__":
    main()
