"""Plans of stages: measured once, remembered, never slower than without by what was measured, and clear about what
cannot be."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import numpy as np
import pytest
import tvm_ffi
from onnx import TensorProto
from tvm import relax

from templates.template import template_named
from templates.workloads import Conv2d
from tests.templates.gpu.support import device_number, gpu
from tests.tuner.graph.networks import Net
from tests.tuner.stages.networks import Machine, branches, host, lowered, with_threads
from tuner.activity import Activity, listening
from tuner.cli.common import Output
from tuner.cli.stages import Stager
from tuner.devices import Device, open_device, opencl
from tuner.errors import BadInput
from tuner.graph import FusedGraph, Placed
from tuner.stages import Schedule, Stage, StageOptions, check, greedy, sequential
from tuner.stages.bench import WIDE_RUNS, Around, StageBench
from tuner.stages.calls import Calls
from tuner.stages.costs import MeasuredCosts, kernel_hashes, must_be_alone, network_key, share_of
from tuner.stages.plan import StagePlan, plan_stages
from tuning_db.maintain import verify
from tuning_db.record import Config, Failure, FailureKind, Trial
from tuning_db.store import Store, open_db

pytestmark = pytest.mark.sampled(2)


@pytest.fixture(scope="module", params=["pocl", "cpu"])
def device(request: pytest.FixtureRequest) -> Device:
    return host(3) if request.param == "cpu" else open_device(f"opencl:{device_number(request.param)}")


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory, device: Device) -> Placed:
    return lowered(branches(tmp_path_factory.mktemp("net")), device)


@pytest.fixture(scope="module")
def pocl() -> Device:
    return open_device(f"opencl:{device_number('pocl')}")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_db(tmp_path / "stages.db") as found:
        yield found


def compared(store: Store) -> dict[Schedule, Trial]:
    """The latest trials of schedules, by these without the threads of groups."""
    trials = sorted((t for t in store.trials() if t.workload.op == "schedule"), key=lambda t: t.created)
    stages = (tuple(replace(Stage.from_text(text), threads=()) for text in t.config["stages"]) for t in trials)
    return dict(zip(stages, trials, strict=True))


def greedy_on(network: Placed, device: Device) -> Schedule:
    return greedy(Calls.of(network).graph(), device.threads if device.is_host else None)


def assert_the_same(network: Placed, plan: StagePlan, device: Device) -> None:
    given = np.random.default_rng(0).standard_normal((1, 16, 12, 12)).astype(np.float32)
    pairs = zip(Machine(network, device).run(given), Machine(plan.placed, device).run(given), strict=True)
    for one, other in pairs:
        np.testing.assert_array_equal(one, other)


@pytest.mark.sampled(2)
def test_a_plan_is_measured_once(network: Placed, device: Device, store: Store) -> None:
    told: list[Activity | None] = []
    with listening(told.append):
        first = plan_stages(network, device, store, StageOptions(600))
    assert first.finished
    counts = [said.done for said in told if said is not None and said.text == "timing stages"]
    assert max(counts) == first.measured > 10
    assert first.seconds <= first.sequential_seconds
    assert (first.schedule is None) == (first.placed is network)
    assert_the_same(network, first, device)
    trials = list(store.trials())
    assert {t.workload.op for t in trials} == {"stage", "schedule"}
    schedules = compared(store)
    assert {(), greedy_on(network, device)} <= schedules.keys()
    assert first.seconds == min(t.seconds for t in schedules.values())
    assert first.sequential_seconds == schedules[()].seconds
    assert list(verify(store)) == []
    again = plan_stages(network, device, store, StageOptions(600))
    assert again.measured == 0
    assert (again.schedule, again.seconds) == (first.schedule, first.seconds)
    assert len(list(store.trials())) == len(trials)


@pytest.mark.sampled(2)
def test_a_schedule_of_an_earlier_comparison_is_not_taken(network: Placed, device: Device, store: Store) -> None:
    """It was compared with another run of one kernel after the other, when the machine may have been faster."""
    plan_stages(network, device, store, StageOptions(600))
    trials = compared(store)
    wide = trials[greedy_on(network, device)]
    store.add(replace(wide, times=(1e-9,), created=datetime.now(UTC)))
    assert [s.text() for s in plan_stages(network, device, store, StageOptions(600)).schedule or ()] == list(
        wide.config["stages"]
    )
    store.add(replace(trials[()], times=(1.0,), created=datetime.now(UTC)))
    plan = plan_stages(network, device, store, StageOptions(600))
    assert (plan.schedule, plan.seconds, plan.measured) == (None, 1.0, 0)


@pytest.mark.sampled(4)
def test_a_network_with_side_effects_keeps_its_order(
    network: Placed, device: Device, store: Store, capfd: pytest.CaptureFixture[str]
) -> None:
    seen: list[tuple[int, ...]] = []
    tvm_ffi.register_global_func("test.seen", lambda x: seen.append(tuple(x.shape)), override=True)
    main = network.module["main"]
    call = relax.Call(relax.ExternFunc("test.seen"), [main.params[0]], ty_args=[relax.TupleType([])])
    before = relax.BindingBlock([relax.VarBinding(relax.Var("seen", relax.TupleType([])), call)])
    body = relax.SeqExpr([before, *main.body.blocks], main.body.body)
    module = network.module.clone()
    module.update_func(module.get_global_var("main"), relax.Function(main.params, body, main.ret_ty, False, main.attrs))
    noting = replace(network, module=module)
    said = assert_keeps_its_order(noting, device, store, capfd)
    assert "test.seen: is no kernel of ours, and may have side effects" in said
    given = np.ones((1, 16, 12, 12), np.float32)
    for one, other in zip(Machine(noting, device).run(given), Machine(network, device).run(given), strict=True):
        np.testing.assert_array_equal(one, other)
    assert seen == [given.shape]


def test_kernels_with_a_workspace_are_alone_on_cuda() -> None:
    """TVM's CUDA runtime would give several streams the same."""
    workload = Conv2d(1, 16, 12, 12, 16, (3, 3), padding=(1, 1, 1, 1)).workload()
    for target, alone in ((gpu("orin"), True), (gpu("mali"), False)):
        for name in ("gpu.conv2d_winograd", "gpu.conv2d_direct"):
            template = template_named(name)
            space = template.space(workload, target)
            assert space is not None
            config = space.sample(Random(0))
            assert config is not None
            function = template.prim_func(workload, target, config)
            assert must_be_alone(function, target) == (alone and name.endswith("winograd"))


@pytest.mark.sampled(4)
def test_a_search_without_time_goes_on_the_next_time(network: Placed, device: Device, store: Store) -> None:
    hurried = plan_stages(network, device, store, StageOptions(1e-9))
    assert not hurried.finished
    assert_the_same(network, hurried, device)
    rest = plan_stages(network, device, store, StageOptions(600))
    assert rest.finished
    assert rest.measured > 0
    assert plan_stages(network, device, store, StageOptions(600)).measured == 0


def test_stages_have_keys_that_do_not_depend_on_their_place(network: Placed, device: Device, store: Store) -> None:
    calls = Calls.of(network)
    bench = StageBench(network, calls, device)
    costs = MeasuredCosts(calls, bench, device, store=store)
    wide = next(stage for stage in greedy(calls.graph()) if len(stage.groups) == 3)
    seconds = costs.seconds(wide)
    other = MeasuredCosts(calls, bench, device, store=store)
    assert other.seconds(replace(wide, groups=wide.groups[::-1])) == seconds
    assert other.measured == 0
    schedule = [costs.divided(stage) for stage in (wide, *sequential(calls.graph()))]
    assert all(time > 0 for time in bench.schedule_seconds(schedule, 3))


def test_a_stage_of_one_group_takes_what_its_calls_take(network: Placed, device: Device, store: Store) -> None:
    calls = Calls.of(network)
    costs = MeasuredCosts(calls, StageBench(network, calls, device), device, store=store)
    chain = Stage(((0, 1, 2),))
    assert costs.seconds(chain) == pytest.approx(sum(costs.seconds(Stage(((i,),))) for i in range(3)))
    assert costs.measured == 3
    stage = Stage(((0,), (1,)))
    estimate = costs.estimate(stage) or 0
    if device.is_host:
        assert costs.measured > 3  # on fewer threads, too
        assert estimate > 0
    else:
        least = max(costs.seconds(Stage(((i,),))) for i in range(2))
        assert 0.9 * least < estimate <= 2 * least


@pytest.mark.sampled(4)
def test_what_streams_hold_up_behind_them_is_known_once_for_a_network_and_a_number_of_streams(
    tmp_path: Path, network: Placed, device: Device, store: Store
) -> None:
    calls = Calls.of(network)
    bench = StageBench(network, calls, device)
    wide = next(stage for stage in greedy(calls.graph()) if len(stage.groups) == 3)
    seconds = MeasuredCosts(calls, bench, device, store=store).seconds(wide)
    (own,) = [t for t in store.trials() if len(t.workload.attrs.get("groups", ())) == 3]
    behind = [t for t in store.trials() if "behind" in t.workload.attrs]
    if device.is_host:
        assert not behind
        assert seconds == own.seconds
        return
    assert [t.workload.attrs["streams"] for t in behind] == [3]
    assert seconds == own.seconds + behind[0].seconds
    costs = MeasuredCosts(calls, bench, device, store=store)
    two = replace(wide, groups=wide.groups[:2])
    costs.prepare([two, wide])
    first, second = (t for t in store.trials() if "behind" in t.workload.attrs)
    assert first == behind[0]
    assert second.workload.attrs["streams"] == 2
    (own,) = [t for t in store.trials() if len(t.workload.attrs.get("groups", ())) == 2]
    assert costs.seconds(two) == own.seconds + second.seconds
    assert [t for t in store.trials() if "behind" in t.workload.attrs] == [first, second]
    other = lowered(branches(tmp_path, 14), device)
    MeasuredCosts(Calls.of(other), StageBench(other, Calls.of(other), device), device, store=store).prepare([wide])
    assert len([t for t in store.trials() if t.workload.attrs.get("streams") == 3]) == 2


def test_what_streams_hold_up_is_measured_with_stages_that_the_device_does_not_refuse(
    tmp_path: Path, network: Placed, device: Device, store: Store
) -> None:
    """As the database remembers them."""
    calls = Calls.of(network)
    bench = StageBench(network, calls, device)
    wide = next(stage for stage in greedy(calls.graph()) if len(stage.groups) == 3)
    MeasuredCosts(calls, bench, device, store=store).prepare([wide])
    (trial,) = [t for t in store.trials() if len(t.workload.attrs.get("groups", ())) == 3]
    failed = replace(trial, times=(), failure=Failure(FailureKind.RUN, "out of resources"), created=datetime.now(UTC))
    with open_db(tmp_path / "other.db") as other:
        other.add(failed)
        costs = MeasuredCosts(calls, bench, device, store=other)
        costs.prepare([wide])
        assert costs.seconds(wide) == math.inf
        assert not [t for t in other.trials() if "behind" in t.workload.attrs]


def test_what_the_database_has_is_known(network: Placed, device: Device, store: Store) -> None:
    calls = Calls.of(network)
    bench = StageBench(network, calls, device)
    wide = next(stage for stage in greedy(calls.graph()) if len(stage.groups) == 3)
    first = MeasuredCosts(calls, bench, device, store=store)
    assert not first.known(wide)
    assert not first.known(Stage(wide.groups[:1]))
    first.prepare([wide])
    again = MeasuredCosts(calls, bench, device, store=store)
    assert again.known(replace(wide, groups=wide.groups[::-1]))
    assert again.known(Stage(wide.groups[:1]))
    assert not again.known(replace(wide, groups=wide.groups[:2]))
    assert again.measured == 0


def test_a_stage_that_is_known_roughly_is_measured_well_when_it_is_asked_for_again(
    network: Placed, device: Device, store: Store
) -> None:
    def of_three() -> list[Trial]:
        return [t for t in store.trials() if len(t.workload.attrs.get("groups", ())) == 3]

    calls = Calls.of(network)
    bench = StageBench(network, calls, device)
    wide = next(stage for stage in greedy(calls.graph()) if len(stage.groups) == 3)
    costs = MeasuredCosts(calls, bench, device, store=store)
    costs.prepare([wide], roughly=True)
    (rough,) = of_three()
    assert len(rough.times) == 5
    before = costs.seconds(wide)
    assert costs.is_rough(wide)
    again = MeasuredCosts(calls, bench, device, store=store)
    assert again.known(wide)
    again.prepare([wide], roughly=True)
    assert of_three() == [rough]
    again.prepare([wide])
    well = next(t for t in of_three() if t != rough)
    assert len(well.times) == WIDE_RUNS
    assert again.seconds(wide) - before == pytest.approx(well.seconds - rough.seconds)
    assert not again.is_rough(wide)
    again.prepare([wide])
    assert len(of_three()) == 2


def test_stages_are_timed_in_rounds_each_in_turn_with_its_kernels(network: Placed, device: Device) -> None:
    """So that a machine that becomes slower does so for all."""

    class Recorded(StageBench):
        def timing(self, timed: Around, staged: bool) -> Callable[[], list[float]]:
            run, name = super().timing(timed, staged), (tuple(stage for _, stage in timed), staged)

            def recorded() -> list[float]:
                ran.append(name)
                return run()

            return recorded

    calls = Calls.of(network)
    bench = Recorded(network, calls, device)
    stage = next(stage for stage in greedy(calls.graph()) if len(stage.groups) == 3)
    some = [replace(stage, groups=(stage.groups[i], stage.groups[2])) for i in (0, 1)]
    if device.is_host:
        some = [s.divided((1, 1), device.threads) for s in some]
    ran: list[tuple[tuple[Stage, ...], bool]] = []
    found = bench.seconds(some, 4)
    assert {s: len(times) for s, times in found.items()} == dict.fromkeys(some, 4)
    assert ran == 5 * [((s,), staged) for s in some for staged in (True, False)]


def test_a_kernel_that_cannot_be_timed_is_named(
    network: Placed, device: Device, store: Store, capfd: pytest.CaptureFixture[str]
) -> None:
    """As the database remembers it: the device refused it."""
    calls = Calls.of(network)
    bench = StageBench(network, calls, device)
    MeasuredCosts(calls, bench, device, store=store).seconds(Stage(((0,),)))
    (trial,) = store.trials()
    store.add(replace(trial, times=(), failure=Failure(FailureKind.RUN, "out of resources"), created=datetime.now(UTC)))
    with pytest.raises(BadInput, match=f"{calls.kernels[0].name}.*cannot be timed"):
        MeasuredCosts(calls, bench, device, store=store).seconds(Stage(((0,),)))
    assert Stager(device, store, StageOptions(10), Output(as_json=False))(network) is network
    *progress, said = capfd.readouterr().err.strip().splitlines()
    assert said.startswith("no stages: ")
    assert all(line.startswith("stages: ") for line in progress)  # on a machine that is busy


def test_networks_are_told_apart_by_their_shapes(tmp_path: Path, network: Placed, device: Device) -> None:
    def key(placed: Placed) -> str:
        calls = Calls.of(placed)
        return network_key(kernel_hashes(calls), calls.graph())

    assert key(network) == key(lowered(branches(tmp_path), device))
    assert key(network) != key(lowered(branches(tmp_path, 14), device))


@pytest.mark.sampled(4)
def test_a_schedule_is_for_its_batch_alone(tmp_path: Path, network: Placed, device: Device, store: Store) -> None:
    """As the database remembers them: of one batch the best has stages, of the other it has none."""
    eight = lowered(branches(tmp_path, batch=8), device)
    stages: dict[int, str] = {}
    for batch, placed in ((8, eight), (1, network)):
        before = {t.workload.key for t in store.trials()}
        assert plan_stages(placed, device, store, StageOptions(600)).measured > 0
        added = {t.workload.key: t for t in store.trials() if t.workload.key not in before}
        assert {t.workload.op for t in added.values()} == {"stage", "schedule"}  # nothing was taken over
        (stages[batch],) = (key for key, t in added.items() if t.workload.op == "schedule")
    assert stages[1] != stages[8]
    parallel = greedy(Calls.of(network).graph(), device.threads if device.is_host else None)
    wide = [stage.text() for stage in (with_threads(parallel, device.threads) if device.is_host else parallel)]
    trial = next(t for t in store.trials() if t.workload.key == stages[8] and not t.config["stages"])
    config = Config("stages", {"stages": wide, "captured": False, "finished": True})
    store.add(replace(trial, config=config, times=(1e-9,), created=datetime.now(UTC)))
    other = next(t for t in store.trials() if t.workload.key == stages[1] and not t.config["stages"])
    store.add(replace(other, times=(1e-9,), created=datetime.now(UTC)))
    assert [s.text() for s in plan_stages(eight, device, store, StageOptions(600)).schedule or ()] == wide
    assert plan_stages(network, device, store, StageOptions(600)).schedule is None


def test_a_kernel_keeps_busy_what_its_groups_fill(network: Placed, device: Device) -> None:
    shares = [share_of(f, device) for g, f in network.module.functions.items() if g.name_hint.startswith("conv2d")]
    assert all(0 < share <= 1 for share in shares)
    gpu = replace(device, key=replace(device.key, family="mali", attrs={**device.key.attrs, "compute_units": 4}))
    assert all(share_of(f, gpu) < 1 for g, f in network.module.functions.items() if g.name_hint.startswith("conv2d"))


def test_one_thread_has_no_stages(network: Placed, store: Store) -> None:
    with pytest.raises(BadInput, match=r"a thread each.*--threads 2"):
        plan_stages(network, host(1), store, StageOptions(1))


def large(folder: Path, size: int) -> FusedGraph:
    """Its input is small, and a value in it takes `size` bytes."""
    net = Net()
    rows = 1 << 13
    shape = [1, 16, rows, size // (8 * 16 * rows)]
    wide = net.op("Cast", net.input(1, 16, 1, 1), to=TensorProto.DOUBLE)
    value = net.op("Expand", wide, net.constant(np.array(shape, np.int64)))
    small = net.op("MaxPool", value, kernel_shape=[2, 2], strides=[1 << 10] * 2)
    return net.graph(folder, net.op("Cast", small, to=TensorProto.FLOAT))


def assert_keeps_its_order(placed: Placed, device: Device, store: Store, capfd: pytest.CaptureFixture[str]) -> str:
    """And there is one line, of standard error."""
    stager = Stager(device, store, StageOptions(10), Output(as_json=False))
    assert stager(placed) is placed
    assert stager.result is not None
    assert stager.result["error"]
    said = capfd.readouterr().err.strip()
    assert said.startswith("no stages: ")
    assert "\n" not in said
    return said


def test_a_network_that_the_device_has_no_memory_for_keeps_its_order(
    network: Placed, device: Device, store: Store, capfd: pytest.CaptureFixture[str]
) -> None:
    said = assert_keeps_its_order(network, replace(device, memory_bytes=1000), store, capfd)
    assert f"and {device.title} has 1000 bytes" in said


def test_a_network_that_the_driver_refuses_memory_for_keeps_its_order(
    tmp_path: Path, pocl: Device, store: Store, capfd: pytest.CaptureFixture[str]
) -> None:
    """One tensor larger than it allows: nothing is touched, as would be in many that are together."""
    allowed = opencl.device_info(device_number("pocl")).max_alloc_bytes
    placed = lowered(large(tmp_path, allowed + (1 << 24)), pocl)
    assert "cannot be allocated" in assert_keeps_its_order(placed, replace(pocl, memory_bytes=None), store, capfd)


def test_a_schedule_that_does_not_fit_is_refused(network: Placed) -> None:
    graph = Calls.of(network).graph()
    with pytest.raises(BadInput, match="in no stage"):
        check(graph, [Stage(((0,),))])
