"""This module merges two sorted runs that lie one behind the other, by any number of items. Start at `merge_stretch`.

Each item finds by binary search which elements of the two runs come before its stretch of the result, and merges from
there on. All stretches take the same time, however the runs interleave.

Source: Green, McColl and Bader, "GPU Merge Path - A GPU Merging Algorithm", ICS 2012.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.tirx.script import builder as T

from templates.kernels import held, own
from vision_ops.sort_keys import LAST

Read = Callable[[Any], Any]  # position -> the key there


@dataclass(frozen=True)
class Runs:
    """Two sorted runs of keys, which lie at [begin, middle) and [middle, end). Either may be empty."""

    begin: Any
    middle: Any
    end: Any


def _last() -> Any:
    return tirx.const(LAST, "uint64")


def merge_stretch(runs: Runs, read: Read, start: Any, *, count: Any, write: Callable[[Any, Any], None]) -> None:
    """Call `write(position, key)` for `count` positions of the merged run, from `start` on (begin <= start)."""
    skip = held(start - runs.begin)
    low, high = own("int32"), own("int32")
    low[0] = tirx.max(0, skip - (runs.end - runs.middle))
    high[0] = tirx.min(skip, runs.middle - runs.begin)
    with T.While(low[0] < high[0]):
        at = held((low[0] + high[0]) // 2)
        before = held(read(runs.begin + at) < read(runs.middle + skip - 1 - at))
        low[0] = tirx.if_then_else(before, at + 1, low[0])
        high[0] = tirx.if_then_else(before, high[0], at)
    first, second = own("int32"), own("int32")
    heads = own("uint64", 2)
    first[0] = runs.begin + low[0]
    second[0] = runs.middle + skip - low[0]
    heads[0] = tirx.if_then_else(first[0] < runs.middle, read(first[0]), _last())
    heads[1] = tirx.if_then_else(second[0] < runs.end, read(second[0]), _last())
    with T.serial(0, count) as step:
        # There is no branch on the keys, as a CPU would mispredict every other one.
        takes_first = held(heads[0] < heads[1])
        write(start + step, tirx.if_then_else(takes_first, heads[0], heads[1]))
        first[0] = first[0] + takes_first.astype("int32")
        second[0] = second[0] + 1 - takes_first.astype("int32")
        at = held(tirx.if_then_else(takes_first, first[0], second[0]))
        inside = held(at < tirx.if_then_else(takes_first, runs.middle, runs.end))
        following = held(tirx.if_then_else(inside, read(at), _last()))
        heads[0] = tirx.if_then_else(takes_first, following, heads[0])
        heads[1] = tirx.if_then_else(takes_first, heads[1], following)
