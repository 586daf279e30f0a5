"""The space of depthwise convolutions on CPUs."""

from __future__ import annotations

from templates.cpu.depthwise import Depthwise
from templates.workloads import Conv2d
from tests.templates.support import host_target


def test_a_chunk_has_whole_tiles() -> None:
    conv = Conv2d(1, 64, 28, 28, 64, (3, 3), padding=(1, 1, 1, 1), groups=64)
    space = Depthwise().space(conv.workload(("bias",)), host_target())
    assert space is not None
    knobs = {knob.name: knob.values for knob in space.knobs}
    assert any(rows and rows % th for rows in knobs["rows"] for th in knobs["th"])
    assert all(config["rows"] % config["th"] == 0 for config in space)
    assert {config["th"] for config in space if config["rows"]} > {1}
