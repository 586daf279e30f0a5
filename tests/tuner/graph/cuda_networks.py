"""A branchy network for a GPU of Nvidia's, which need not be here."""

from __future__ import annotations

from pathlib import Path

from tvm.target import Target

from tests.tuner.stages.networks import branches
from tests.tuner.stages.test_rewrite import by_branch
from tuner.graph import DevicePlan, Placed, lower_placed
from tuner.stages.calls import Calls
from tuner.stages.rewrite import staged

TARGET = Target(
    {
        "kind": "cuda",
        "arch": "sm_87",
        "max_threads_per_block": 1024,
        "max_shared_memory_per_block": 49152,
        "thread_warp_size": 32,
        "host": {"kind": "llvm"},
    }
)


def in_stages(folder: Path) -> Placed:
    """Two blocks of three branches, each in a stage of three groups."""
    graph = branches(folder)
    placed = lower_placed(graph, [DevicePlan(TARGET, {})], [0] * len(graph.steps))
    calls = Calls.of(placed)
    return staged(placed, calls, by_branch(calls))
