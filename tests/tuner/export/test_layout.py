"""Where the values and the workspaces of a device lie: what a stage needs at the same time does not share a buffer."""

from __future__ import annotations

import json

import pytest

from tuner.export.layout import laid_out, on_host
from tuner.graph import KernelCall, Program, Value
from tuner.graph.lowering.program import Stage

LAUNCHES = {"kernel": {"workspaces": [64]}}


def branching(stages: tuple[Stage, ...]) -> Program:
    """A value that two branches of two kernels read, whose ends one kernel joins, all on a GPU. Every kernel has a
    workspace."""
    ways = ((0, 1), (1, 2), (2, 3), (1, 4), (4, 5), (3, 5, 6))
    return Program(
        values=tuple(Value((16,), "float32", i) for i in range(7)),
        inputs=(0,),
        constants=(),
        outputs=(6,),
        calls=tuple(KernelCall("kernel", operands) for operands in ways),
        devices=("opencl",),
        launches=LAUNCHES,
        stages=stages,
    )


def test_what_a_stage_needs_shares_no_buffer() -> None:
    stage = Stage(1, ((0, 2), (0, 2)))
    assert stage.ranges == (range(1, 3), range(3, 5))
    in_turn, together = (laid_out(on_host(branching(stages)), 1) for stages in ((), (stage,)))
    held = [together.values[i].index for i in range(1, 6)]
    own = [buffer for call in range(2, 6) for buffer in together.device.scratch[call]]  # behind the copy of the input
    assert len({*held, *own}) == len(held) + len(own) == 9
    assert in_turn.device.size < together.device.size == 9 * 64


@pytest.mark.parametrize("groups", [[], [[0, 0]], [[0, 2], [0, 0]]])
def test_a_stage_without_calls_is_damaged(groups: list[list[int]]) -> None:
    data = json.loads(json.dumps(branching(()).as_dict()))
    assert list(Program.from_dict(data).groups()) == [(range(i, i + 1),) for i in range(6)]
    data["stages"] = [{"first": 1, "groups": groups}]
    with pytest.raises(ValueError, match="a stage has no groups, or a group no calls"):
        Program.from_dict(data)
