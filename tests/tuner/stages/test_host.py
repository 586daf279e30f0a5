"""Stages on the CPU: groups of kernels on parts of its threads, with the results of one kernel after the other, however
late any of them is; as built modules, too."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import te, tirx
from tvm.script import tirx as T

from tests.tuner.stages.networks import RUNS, Machine, all_merged, branches, host, lowered, with_threads
from tests.tuner.stages.test_rewrite import by_branch, inputs
from tuner.errors import BadInput
from tuner.graph import FusedGraph, Placed
from tuner.graph.layout.choice import Planned
from tuner.module import BuildOptions, build_placed, load, verify
from tuner.module import runtime as module_runtime
from tuner.report.page.flow import flow_of
from tuner.stages import Limits, Options, Schedule, Stage, StageOptions, greedy
from tuner.stages.bench import StageBench
from tuner.stages.calls import Calls
from tuner.stages.costs import MeasuredCosts
from tuner.stages.host import Host
from tuner.stages.merge import Merging
from tuner.stages.plan import plan_stages
from tuner.stages.rewrite import staged
from tuning_db.store import open_db

THREADS = 4


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> FusedGraph:
    return branches(tmp_path_factory.mktemp("net"))


@pytest.fixture(scope="module")
def network(graph: FusedGraph) -> Placed:
    return lowered(graph, host(THREADS))


@pytest.fixture(scope="module")
def plain(network: Placed) -> Machine:
    return Machine(network, host(THREADS))


def branched(network: Placed) -> Schedule:
    return with_threads(by_branch(Calls.of(network)), THREADS)


def delayed(random: Random) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Kernels of stages begin late, now and then."""

    def late(function: tvm_ffi.Function) -> tvm_ffi.Function:
        seconds = random.choice((0.0, 0.0, 1e-4, 1e-3))

        def kernel(*operands) -> None:
            time.sleep(seconds)
            function(*operands)

        return tvm_ffi.convert(kernel)

    def around(stage: Callable[..., None]) -> Callable[..., None]:
        return lambda *given: stage(*(late(a) if isinstance(a, tvm_ffi.Function) else a for a in given))

    return around


def assert_same(found: list[np.ndarray], wanted: list[np.ndarray]) -> None:
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("make", [by_branch, lambda calls: greedy(calls.graph())])
def test_results_are_those_of_one_after_the_other(network: Placed, plain: Machine, make) -> None:
    schedule = with_threads(make(Calls.of(network)), THREADS)
    machine = Machine(network, host(THREADS), schedule)
    late = Machine(network, host(THREADS), schedule, around=delayed(Random(1)))
    for run in range(RUNS):
        given = inputs(run)
        wanted = plain.run(given)
        assert_same(machine.run(given), wanted)
        assert_same(late.run(given), wanted)


def test_merged_stages_run_between_others(network: Placed, plain: Machine) -> None:
    """They round as they do alone: close, not equal, where another template was chosen."""
    merging = Merging(network, Calls.of(network), host(THREADS))
    schedule = all_merged(merging)
    assert any(stage.merged for stage in schedule)
    for one, other in zip(Machine(network, host(THREADS), schedule).run(inputs()), plain.run(inputs()), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_what_a_stage_touches_is_not_shared(network: Placed, plain: Machine) -> None:
    """See also test_races.py."""
    storages = [
        m.executable.as_text().count("alloc_storage") for m in (Machine(network, host(4), branched(network)), plain)
    ]
    assert storages[0] > storages[1]


def test_an_error_in_a_group_is_one_and_leaves_nothing_behind(network: Placed, plain: Machine) -> None:
    broken = [True]

    def failing(function: tvm_ffi.Function) -> tvm_ffi.Function:
        def kernel(*operands) -> None:
            if broken[0]:
                raise RuntimeError("broken on purpose")
            function(*operands)

        return tvm_ffi.convert(kernel)

    def around(stage: Callable[..., None]) -> Callable[..., None]:
        def run(*given) -> None:
            at = [i for i, a in enumerate(given) if isinstance(a, tvm_ffi.Function)][1]
            stage(*given[:at], failing(given[at]), *given[at + 1 :])

        return run

    machine = Machine(network, host(THREADS), branched(network), around=around)
    for _ in range(3):
        broken[0] = True
        with pytest.raises(RuntimeError, match="on purpose"):
            machine.run(inputs())
        broken[0] = False
        assert_same(machine.run(inputs()), plain.run(inputs()))


@pytest.mark.parametrize(
    ("works", "threads", "counts"),
    [((1, 1), 2, (1, 1)), ((3, 1), 4, (3, 1)), ((9, 1), 4, (3, 1)), ((5, 1, 2), 8, (5, 1, 2)), ((0, 0), 3, (2, 1))],
)
def test_threads_are_divided_by_work(works: tuple, threads: int, counts: tuple) -> None:
    stage = Stage(tuple((i,) for i in range(len(works)))).divided(works, threads)
    assert stage.threads == counts
    assert Stage.from_text(stage.text()) == stage


@pytest.mark.parametrize("text", ["0:1|1", "0|1:2", "0:0|1:1", "0:x|1:1"])
def test_texts_that_are_no_stages_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        Stage.from_text(text)


def test_more_groups_than_threads_are_refused(network: Placed) -> None:
    wide = Stage(((0,), (1,), (2,)))
    with pytest.raises(BadInput, match="3 groups are more than 2 threads"):
        wide.divided((1, 1, 1), 2)
    calls = Calls.of(network)
    with pytest.raises(BadInput, match="have threads on the host"):
        staged(network, calls, by_branch(calls))


@pytest.mark.sampled(2)
def test_more_groups_than_threads_are_not_searched(network: Placed, tmp_path: Path) -> None:
    device = host(2)
    with open_db(tmp_path / "stages.db") as store:
        plan_stages(network, device, store, StageOptions(600, search=Options(Limits(4, 3))))
        trials = list(store.trials())
        assert max(len(t.workload.attrs["groups"]) for t in trials if t.workload.op == "stage") == 2
        calls = Calls.of(network)
        costs = MeasuredCosts(calls, StageBench(network, calls, device), device, store=store)
        assert costs.seconds(Stage(((0,), (1,), (2,)))) == float("inf")
        assert costs.measured == 0


def test_kernels_of_another_library_run_alone(network: Placed, tmp_path: Path) -> None:
    """It has threads of its own."""
    device, calls = host(2), Calls.of(network)
    data = te.placeholder((4,), name="data")
    out = te.extern(
        [data.shape], [data], lambda i, o: tirx.call_packed("library", i[0].data, o[0].data), dtype="float32"
    )
    module = calls.module.clone()
    module.update_func(module.get_global_var(calls.kernels[2].name), te.create_prim_func([data, out]))
    with open_db(tmp_path / "stages.db") as store:
        bench = StageBench(network, calls, device)
        costs = MeasuredCosts(replace(calls, module=module), bench, device, store=store)
        assert costs.seconds(Stage(((1,), (2,)))) == float("inf")
        assert costs.seconds(Stage(((1, 2),))) < float("inf")
        assert MeasuredCosts(calls, bench, device, store=store).seconds(Stage(((1,), (2,)))) < float("inf")


def test_loops_are_shared_by_as_many_threads_as_are_asked_for() -> None:
    found: set[int] = set()

    def note(*_operands) -> None:
        found.add(threading.get_ident())
        time.sleep(0.01)  # so that no thread has all parts before another looks

    tvm_ffi.register_global_func("test.note", note, override=True)

    @T.prim_func
    def noting(out: T.Buffer((16,), "float32")) -> None:
        T.func_attr({"global_symbol": "noting"})
        for _i in T.parallel(16):
            T.evaluate(T.call_packed("test.note", out.data))

    machine = Host(THREADS)
    kernel = machine.loaded(tvm.tirx.build(tvm.IRModule({"noting": noting}), tvm.target.Target("llvm")))["noting"]
    counts = []
    with machine.computing():
        for threads in (THREADS, 1, 2, THREADS):
            machine.share(threads)
            found.clear()
            kernel(tvm.runtime.empty((16,)))
            counts.append(len(found))
    assert counts == [THREADS, 1, 2, THREADS]


def built(graph: FusedGraph, folder: Path, arrange: Callable[[Placed], Placed] | None) -> Path:
    device = host(THREADS)
    build_placed(
        graph, [device], Planned([0] * len(graph.steps)), directory=folder, options=BuildOptions(arrange=arrange)
    )
    return folder


@pytest.fixture(scope="module")
def modules(graph: FusedGraph, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """In stages, and without."""
    folder = tmp_path_factory.mktemp("modules")
    return (
        built(graph, folder / "staged", lambda placed: staged(placed, Calls.of(placed), branched(placed))),
        built(graph, folder / "plain", None),
    )


@pytest.mark.parametrize("threads", [1, 2, THREADS])
def test_built_modules_run_in_stages(
    modules: tuple[Path, Path], graph: FusedGraph, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On fewer threads than they were built for, too."""
    monkeypatch.setenv("TVM_NUM_THREADS", str(threads))
    module, other = map(load, modules)
    assert any(":" in text for text in module.manifest.stages)
    given = {
        name: np.random.default_rng(0).standard_normal(shape).astype(t) for name, (shape, t) in module.inputs.items()
    }
    wanted = other(given)
    for _ in range(5):
        for name, value in module(given).items():
            np.testing.assert_array_equal(value, wanted[name])
    assert max(verify(module, other, graph=graph).values()) == 0.0


def test_every_kernel_of_a_stage_is_seen(modules: tuple[Path, Path]) -> None:
    """When it is watched, and in the report's graph."""
    module, other = map(load, modules)
    given = {name: np.ones(shape, t) for name, (shape, t) in module.inputs.items()}
    calls = module.profile(given, runs=2)
    assert sorted(c.function for c in calls) == sorted(c.function for c in other.profile(given, runs=2))
    assert [c.operator for c in calls if c.operator] == list(module.manifest.operators)
    kernels = [n for n in flow_of(modules[0], module.manifest)["nodes"] if n["stage"] is not None]
    assert len(kernels) == len(calls)
    assert {n["group"] for n in kernels} == {0, 1, 2}
    plain_edges = flow_of(modules[1], other.manifest)["edges"]
    assert len(flow_of(modules[0], module.manifest)["edges"]) == len(plain_edges)


def test_a_fresh_process_loads_them(modules: tuple[Path, Path]) -> None:
    program = """
import sys
import numpy as np
from tuner.module import load
staged, plain = map(load, sys.argv[1:])
given = {name: np.ones(shape, t) for name, (shape, t) in staged.inputs.items()}
wanted = plain(given)
assert all(np.array_equal(value, wanted[name]) for name, value in staged(given).items())
"""
    subprocess.run([sys.executable, "-c", program, *map(str, modules)], check=True, cwd=Path(__file__).parents[3])


def test_without_the_pool_they_run_one_after_the_other(
    modules: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the pool was compiled for another system."""
    monkeypatch.setattr(module_runtime, "open_pool", lambda _library: None)
    module, other = map(load, modules)
    given = {name: np.ones(shape, t) for name, (shape, t) in module.inputs.items()}
    wanted = other(given)
    for name, value in module(given).items():
        np.testing.assert_array_equal(value, wanted[name])


def test_without_a_compiler_there_are_none(network: Placed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with open_db(tmp_path / "stages.db") as store, pytest.raises(BadInput, match="thread pool"):
        plan_stages(network, host(2), store, StageOptions(1))
