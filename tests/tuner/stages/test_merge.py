"""Convolutions of one input made one: which may be, that they compute the same, what they cost, and that searches and
modules use them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tvm.script import tirx as T

from templates.reference import Operands, reference
from templates.template import ScheduleError, search_space, template_named
from templates.workloads import Conv2d, conv_of
from tests.templates.gpu.support import device_number
from tests.tuner.graph.networks import Net
from tests.tuner.stages.networks import RUNS, Delays, Machine, all_merged, lowered
from tuner.devices import Device, open_device
from tuner.errors import BadInput
from tuner.graph import AnchorStep, FusedGraph, MergedOperator, Placed, merged_tasks
from tuner.graph.lowering.merge import Piece, merge_kind, merged_step, spread
from tuner.stages import Schedule, Stage, StageOptions, check, greedy, search
from tuner.stages.bench import WIDE_RUNS, StageBench
from tuner.stages.calls import Calls
from tuner.stages.costs import MeasuredCosts
from tuner.stages.merge import Merging
from tuner.stages.plan import plan_stages
from tuner.stages.rewrite import staged
from tuner.stages.schedule import can_merge
from tuning_db.maintain import verify
from tuning_db.record import Config, Failure, FailureKind, Trial, Workload
from tuning_db.store import Store, open_db


@pytest.fixture(scope="module")
def device() -> Device:
    return open_device(f"opencl:{device_number('pocl')}")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_db(tmp_path / "merge.db") as found:
        yield found


def three(
    folder: Path,
    bias: bool = True,
    relu: bool = True,
    joined: int = 3,
    batch: int = 1,
    strides: tuple[int, int] = (1, 1),
) -> FusedGraph:
    """1x1, 3x3 and 5x5 of one input, of 16, 32 and 48 channels; so many of them are joined in the end, in an order that
    is not theirs."""
    net = Net()
    x = net.op("Relu", net.input(batch, 16, 12, 12))
    ends = []
    for channels, kernel in ((16, 1), (32, 3), (48, 5)):
        y = net.conv(x, (16, channels), kernel, bias=bias, pads=[kernel // 2] * 4, strides=strides)
        ends.append(net.op("Relu", y) if relu else y)
    ends = ends[1:] + ends[:1]
    rest = [net.op("MaxPool", y, kernel_shape=[2, 2]) for y in ends[joined:]]
    return net.graph(folder, *([net.op("Concat", *ends[:joined], axis=1)] if joined else []), *rest)


def arrays(batch: int = 1, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((batch, 16, 12, 12)).astype(np.float32)


def assert_equal(one: list[np.ndarray], other: list[np.ndarray]) -> None:
    for a, b in zip(one, other, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def assert_merged_computes_the_same(graph: FusedGraph, device: Device, batch: int = 1) -> tuple[MergedOperator, ...]:
    """All that may be merged being merged; returns what was."""
    placed = lowered(graph, device)
    calls = Calls.of(placed)
    merging = Merging(placed, calls, device)
    schedule = all_merged(merging)
    check(calls.graph(merging.kinds), schedule)
    x = arrays(batch)
    assert_equal(Machine(placed, device, schedule).run(x), Machine(placed, device).run(x))
    return merged_of(staged(placed, calls, schedule, merging=merging))


def merged_of(placed: Placed) -> tuple[MergedOperator, ...]:
    return tuple(o for o in placed.operators if isinstance(o, MergedOperator))


@pytest.mark.sampled(16)
@pytest.mark.parametrize("epilogue", [(False, False), (False, True), (True, False), (True, True)])
def test_kernels_of_three_sizes_are_one(tmp_path: Path, device: Device, epilogue: tuple[bool, bool]) -> None:
    (merged,) = assert_merged_computes_the_same(three(tmp_path, *epilogue), device)
    conv = conv_of(merged.workload)
    assert (conv.kernel, conv.padding, conv.out_channels) == ((5, 5), (2, 2, 2, 2), 96)
    assert merged.workload.epilogue == ("bias",) * epilogue[0] + ("relu",) * epilogue[1]
    assert merged.choice.config is not None
    layouts = template_named(merged.choice.config.template).layouts(merged.workload, device.target)
    block = layouts.out.block or 1
    assert [(part.result, block * part.first_block) for part in merged.parts] == [(0, 0), (0, 32), (0, 80)]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("joined", [0, 2])
def test_each_writes_its_own_tensor_or_its_part_of_a_joined_one(tmp_path: Path, device: Device, joined: int) -> None:
    (merged,) = assert_merged_computes_the_same(three(tmp_path, joined=joined), device)
    assert len({part.result for part in merged.parts}) == 3 - max(0, joined - 1)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("batch", "strides"), [(2, (1, 1)), (1, (2, 2)), (3, (2, 1))])
def test_batches_and_strides(tmp_path: Path, device: Device, batch: int, strides: tuple[int, int]) -> None:
    (merged,) = assert_merged_computes_the_same(three(tmp_path, joined=0, batch=batch, strides=strides), device, batch)
    assert len(merged.parts) == 3


@pytest.mark.sampled(2)
def test_kernels_that_cross(tmp_path: Path, device: Device) -> None:
    """1x3 and 3x1 (Inception): neither is as large as both."""
    net = Net()
    x = net.op("Relu", net.input(1, 16, 12, 12))
    flat = net.conv(x, (16, 16), (1, 3), pads=[0, 1, 0, 1])
    high = net.conv(x, (16, 16), (3, 1), pads=[1, 0, 1, 0])
    (merged,) = assert_merged_computes_the_same(net.graph(tmp_path, net.op("Concat", flat, high, axis=1)), device)
    assert conv_of(merged.workload).kernel == (3, 3)


@st.composite
def convolutions(draw: st.DrawFn) -> list[Conv2d]:
    """Of one input and with outputs of one size, whatever kernels and paddings give it."""
    strides = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    height, width, size = draw(st.integers(5, 9)), draw(st.integers(5, 9)), None
    found: list[Conv2d] = []
    for channels in draw(st.lists(st.integers(1, 3), min_size=2, max_size=3)):
        kernel = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
        padding = draw(st.tuples(*[st.integers(0, 3)] * 4))
        conv = Conv2d(1, 2, height, width, channels, kernel, strides, padding)
        if size in (None, conv.out_shape[2:]):
            size = conv.out_shape[2:]
            found.append(conv)
    return found


@given(convolutions(), st.integers(0, 2**31))
def test_any_convolutions_with_outputs_of_one_size(convs: list[Conv2d], seed: int) -> None:
    rng = np.random.default_rng(seed)
    data = rng.standard_normal(convs[0].data_shape)
    steps, wanted = [], []
    for conv in convs:
        weight = rng.standard_normal(conv.weight_shape).astype(np.float32)
        bias = rng.standard_normal(conv.out_channels).astype(np.float32)
        workload = conv.workload(["bias", "relu"])
        steps.append(AnchorStep(workload, "conv", None, (), weight, bias, None))  # type: ignore[arg-type]
        wanted.append(reference(workload, Operands(data, weight, (bias,))))
    assert len({merge_kind(step) for step in steps}) == 1
    merged = merged_step(steps)
    assert merged.bias is not None
    found = reference(merged.workload, Operands(data, merged.weight, (merged.bias,)))
    np.testing.assert_allclose(found, np.concatenate(wanted, axis=1), atol=1e-12)


def test_the_largest_member_keeps_its_padding() -> None:
    """So that the merged workload is one that other networks may have."""
    small, large = Conv2d(1, 8, 56, 56, 8, (1, 1), (2, 2)), Conv2d(1, 8, 56, 56, 8, (3, 3), (2, 2), (1, 1, 1, 1))
    steps = [
        AnchorStep(c.workload(), "conv", None, (), np.ones(c.weight_shape, np.float32), None, None)  # type: ignore[arg-type]
        for c in (small, large)
    ]
    assert conv_of(merged_step(steps).workload) == replace(large, out_channels=16)


def other_input(net: Net, x: str) -> list[str]:
    y = net.op("MaxPool", x, kernel_shape=[3, 3], pads=[1] * 4)
    return [net.conv(x, (16, 16), 1), net.conv(y, (16, 16), 1)]


def other_stride(net: Net, x: str) -> list[str]:
    return [net.conv(x, (16, 16), 1), net.conv(x, (16, 16), 1, strides=[2, 2])]


def other_size(net: Net, x: str) -> list[str]:
    return [net.conv(x, (16, 16), 1), net.conv(x, (16, 16), 3)]


def other_epilogue(net: Net, x: str) -> list[str]:
    return [net.conv(x, (16, 16), 1), net.op("Relu", net.conv(x, (16, 16), 1))]


def no_bias(net: Net, x: str) -> list[str]:
    return [net.conv(x, (16, 16), 1), net.conv(x, (16, 16), 1, bias=False)]


def dilated(net: Net, x: str) -> list[str]:
    return [net.conv(x, (16, 16), 3, pads=[1] * 4), net.conv(x, (16, 16), 3, pads=[2] * 4, dilations=[2, 2])]


def grouped(net: Net, x: str) -> list[str]:
    return [net.conv(x, (1, 16), 3, pads=[1] * 4, group=16), net.conv(x, (1, 16), 3, pads=[1] * 4, group=16)]


def residual(net: Net, x: str) -> list[str]:
    return [net.op("Add", net.conv(x, (16, 16), 1), x), net.op("Add", net.conv(x, (16, 16), 1), x)]


def one_behind_the_other(net: Net, x: str) -> list[str]:
    return [net.conv(net.conv(x, (16, 16), 1), (16, 16), 1)]


def shared_blocks(net: Net, x: str) -> list[str]:
    """Channels that fill no block of any device's layout."""
    return [net.conv(x, (16, 13), 1), net.conv(x, (16, 13), 1)]


@pytest.mark.parametrize(
    "make",
    [
        other_input,
        other_stride,
        other_size,
        other_epilogue,
        no_bias,
        dilated,
        grouped,
        residual,
        one_behind_the_other,
        shared_blocks,
    ],
)
def test_never_what_may_not(tmp_path: Path, device: Device, make: Callable[[Net, str], list[str]]) -> None:
    net = Net()
    placed = lowered(net.graph(tmp_path, *make(net, net.op("Relu", net.input(1, 16, 12, 12)))), device)
    calls = Calls.of(placed)
    merging = Merging(placed, calls, device)
    assert set(merging.kinds) == {None}
    convs = [i for i, call in enumerate(calls.kernels) if call.name.startswith("conv2d")]
    assert convs
    assert not can_merge(calls.graph(merging.kinds), Stage(tuple((i,) for i in convs), True))


def test_a_kernel_that_hands_its_result_on_is_not_spread() -> None:
    @T.prim_func
    def library(data: T.Buffer((1, 2, 4, 4, 8), "float32"), out: T.Buffer((1, 2, 4, 4, 8), "float32")) -> None:
        T.evaluate(T.call_packed("some.library", data.data, out.data))

    with pytest.raises(ScheduleError, match="spread"):
        spread(library, [(1, 1, 4, 4, 8)] * 2, [Piece(0, 0, 1), Piece(1, 0, 1)])


@pytest.mark.sampled(4)
def test_held_up_queues_change_nothing(tmp_path: Path, device: Device) -> None:
    """Merged stages between concurrent ones, whose memory lives on."""
    net = Net()
    x = net.op("Relu", net.input(1, 16, 12, 12))
    for _ in range(3):
        parts = [net.op("Relu", net.conv(x, (16, 16), k, pads=[k // 2] * 4)) for k in (1, 3)]
        parts = [net.op("Relu", net.conv(y, (16, 16), 3, pads=[1] * 4)) for y in parts]
        x = net.op("Relu", net.conv(net.op("Concat", *parts, axis=1), (32, 16), 1))
    placed = lowered(net.graph(tmp_path, x), device)
    calls = Calls.of(placed)
    graph = calls.graph(Merging(placed, calls, device).kinds)
    schedule = [replace(stage, merged=can_merge(graph, stage)) for stage in greedy(graph)]
    check(graph, schedule)
    assert sorted(stage.merged for stage in schedule if len(stage.groups) > 1) == [False] * 3 + [True] * 3
    machine, plain, delays = Machine(placed, device, schedule), Machine(placed, device), Delays(device, seed=3)
    for run in range(RUNS):
        given = arrays(seed=run)
        assert_equal(machine.run_delayed(delays, given), plain.run(given))
    assert delays.count > RUNS


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory, device: Device) -> Placed:
    return lowered(three(tmp_path_factory.mktemp("net"), joined=2), device)


def costs_of(network: Placed, device: Device, store: Store) -> tuple[MeasuredCosts, Merging, Calls]:
    calls = Calls.of(network)
    merging = Merging(network, calls, device, store=store)
    bench = StageBench(network, calls, device, merging=merging)
    return MeasuredCosts(calls, bench, device, store=store, merging=merging), merging, calls


def the_merged_stage(merging: Merging) -> Stage:
    (stage,) = (stage for stage in all_merged(merging) if stage.merged)
    return stage


def test_a_merged_stage_is_measured_once_and_remembered(network: Placed, device: Device, store: Store) -> None:
    costs, merging, _ = costs_of(network, device, store)
    stage = the_merged_stage(merging)
    seconds = costs.seconds(stage)
    assert 0 < seconds < 1
    assert costs.measured == 4  # set against its members in turns: they are known, too
    together = costs.seconds(replace(stage, merged=False))
    assert [t.workload.attrs.get("merged") for t in store.trials()].count(3) == 1
    assert all(t.times for t in store.trials())
    assert list(verify(store)) == []
    again, merging, _ = costs_of(network, device, store)
    assert (again.seconds(the_merged_stage(merging)), again.seconds(replace(stage, merged=False))) == (
        seconds,
        together,
    )
    assert again.measured == 0


def test_without_merged_kernels_there_are_no_merged_stages(network: Placed, device: Device, store: Store) -> None:
    calls = Calls.of(network)
    costs = MeasuredCosts(calls, StageBench(network, calls, device), device, store=store)
    stage = the_merged_stage(Merging(network, calls, device))
    assert costs.seconds(stage) == np.inf
    with pytest.raises(BadInput, match="no kernel"):
        staged(network, calls, [stage])


def remembered(trial: Trial, times: tuple[float, ...], failure: Failure | None = None) -> Trial:
    """From as many runs as it takes: from few, the search would measure it again."""
    return replace(trial, times=WIDE_RUNS * times, failure=failure, created=datetime.now(UTC))


def found_by_search(network: Placed, device: Device, store: Store) -> Schedule:
    costs, merging, calls = costs_of(network, device, store)
    graph = calls.graph(merging.kinds)
    schedule = search(graph, costs).schedule
    check(graph, schedule)
    return schedule


@pytest.mark.sampled(2)
def test_the_search_merges_where_that_is_faster(network: Placed, device: Device, store: Store) -> None:
    """By what the database says of the merged stage."""
    costs, merging, _ = costs_of(network, device, store)
    stage = the_merged_stage(merging)
    costs.seconds(stage)
    (trial,) = (t for t in store.trials() if "merged" in t.workload.attrs)
    store.add(remembered(trial, (1.0,)))
    assert stage not in found_by_search(network, device, store)
    store.add(remembered(trial, (), Failure(FailureKind.RUN, "out of resources")))
    assert stage not in found_by_search(network, device, store)
    for other in [t for t in store.trials() if t.workload.op == "stage" and t.workload != trial.workload]:
        kernels = sum(group.count('["') for group in other.workload.attrs.get("groups", ()))
        if kernels:  # a second each, or the merged one's estimate would be of members that take next to nothing
            store.add(remembered(other, (1.0 * kernels,)))
    store.add(remembered(trial, (1e-9,)))
    schedule = found_by_search(network, device, store)
    assert [s for s in schedule if s.merged] == [stage]
    given = arrays()
    assert_equal(Machine(network, device, schedule).run(given), Machine(network, device).run(given))


def test_merges_whose_padding_has_too_much_work_are_not_measured(network: Placed, device: Device, store: Store) -> None:
    """Where all flop take as long: with the largest kernel's size, all members have 1.6 times as many."""
    costs, merging, _ = costs_of(network, device, store)
    stage = the_merged_stage(merging)
    members = {i: Stage(((i,),)) for group in stage.groups for i in group}
    costs.prepare(list(members.values()))
    trials = {t.workload.key: t for t in store.trials()}
    for i, member in members.items():
        store.add(remembered(trials[costs._workload(member).key], (1e-9 * merging.flop(i),)))
    costs, _, _ = costs_of(network, device, store)
    alone = sum(map(costs.seconds, members.values()))
    assert 1.2 * alone < (costs.estimate(stage) or 0) < 1.3 * alone
    assert stage not in found_by_search(network, device, store)
    assert not [t for t in store.trials() if "merged" in t.workload.attrs]


@pytest.mark.sampled(4)
def test_plans_are_remembered_until_a_merged_kernel_is_tuned(tmp_path: Path, device: Device, store: Store) -> None:
    graph = three(tmp_path)
    network = lowered(graph, device)
    for _ in range(2):
        assert plan_stages(network, device, store, StageOptions(600)).finished
        assert len([t for t in store.trials() if t.workload.op == "schedule" and not t.config["stages"]]) == 1
    calls = Calls.of(network)
    before = Merging(network, calls, device, store=store)
    known = before.kernel(the_merged_stage(before))
    assert known is not None
    assert known.choice.source == "default"
    assert known.workload in {task.workload for task in merged_tasks(graph)}
    better = another_config(known.workload, known.choice.config, device)
    version = template_named(better.template).version
    store.add(Trial(known.workload, device.key, better, version, (1e-6,), error=0.0))
    after = Merging(network, calls, device, store=store)
    kernel = after.kernel(the_merged_stage(after))
    assert kernel is not None
    assert (kernel.choice.config, kernel.choice.source) == (better, "device")
    network_staged = staged(network, calls, all_merged(after), merging=after)
    assert_equal(Machine(network_staged, device).run(arrays()), Machine(network, device).run(arrays()))
    plan_stages(network, device, store, StageOptions(600))
    assert len({t.workload for t in store.trials() if t.workload.op == "schedule"}) == 2


def another_config(workload: Workload, config: Config | None, device: Device) -> Config:
    space = search_space(workload, device.target, only=["gpu.conv2d_direct"])
    assert space is not None
    rng = Random(0)
    drawn = (space.sample(rng) for _ in range(100))
    return next(found for found in drawn if found is not None and found != config)
