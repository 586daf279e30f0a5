"""What a built module's times would be by the stored trials of its operators: `simulated`, to be laid beside what was
measured."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple

from tuner.module import Manifest


class Expected(NamedTuple):
    """An operator, as the index in the manifest; `group`: of its stage, 0 where it is in none; seconds since the
    inference began, and those that it takes."""

    operator: int
    group: int
    begin: float
    seconds: float


def simulated(manifest: Manifest, flow: Mapping[str, Any]) -> list[Expected]:
    """Every operator whose time is stored, in the program's order: begun when what it reads is there and its device has
    done what comes before. Devices work at the same time, and so do the groups of a stage. What no template computes
    (transforms, copies between devices) takes no time, as none is stored. `flow`: as `page.flow.flow_of` has it."""
    before: dict[int, list[int]] = defaultdict(list)
    for maker, reader in flow["edges"]:
        before[reader].append(maker)
    ends: list[float] = []
    free: dict[tuple[int, int], float] = defaultdict(float)
    stage: dict[int, int | None] = {}  # that each device is in
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
        if place is not None and place not in found:  # of several kernels the first stands for all
            seconds = manifest.operators[place].seconds or 0.0
        begin = max([free[lane], *(ends[maker] for maker in before[number])])
        ends.append(begin + seconds)
        if node["kind"] in ("kernel", "other"):
            free[lane] = ends[-1]
        if seconds:
            found[place] = Expected(place, lane[1], begin, seconds)
    return list(found.values())
