"""Simulates a built module by the stored trials of its operators, for comparison with what was measured.

Start at `simulated`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple

from tuner.module import Manifest


class Expected(NamedTuple):
    """A record that says when an operator is expected to run.

    `operator` is the operator's index in the manifest. `group` is its group in its stage, 0 outside of stages. `begin`
    is in seconds since the inference began. `seconds` is how long the operator takes.
    """

    operator: int
    group: int
    begin: float
    seconds: float


def simulated(manifest: Manifest, flow: Mapping[str, Any]) -> list[Expected]:
    """Return when every operator with a stored time would run, in the program's order.

    An operator begins when its inputs are there and its device has done what comes before. Devices work at the same
    time, and so do the groups of a stage. What no template computes (transforms, copies between devices) takes no time,
    as none is stored. `flow` is what `page.flow.flow_of` returns.
    """
    before: dict[int, list[int]] = defaultdict(list)
    for maker, reader in flow["edges"]:
        before[reader].append(maker)
    ends: list[float] = []
    free: dict[tuple[int, int], float] = defaultdict(float)
    stage: dict[int, int | None] = {}  # the stage that each device is in
    found: dict[int, Expected] = {}
    for number, node in enumerate(flow["nodes"]):
        device, lane = node["device"], (node["device"], node["group"] or 0)
        if stage.get(device) != node["stage"]:  # a device's stages come one after the other
            joined = max((end for (d, _), end in free.items() if d == device), default=0.0)
            for d, group in [*free, lane]:
                if d == device:
                    free[d, group] = joined
            stage[device] = node["stage"]
        place, seconds = node["operator"], 0.0
        if place is not None and place not in found:  # the first of several kernels stands for all
            seconds = manifest.operators[place].seconds or 0.0
        begin = max([free[lane], *(ends[maker] for maker in before[number])])
        ends.append(begin + seconds)
        if node["kind"] in ("kernel", "other"):
            free[lane] = ends[-1]
        if seconds:
            found[place] = Expected(place, lane[1], begin, seconds)
    return list(found.values())
