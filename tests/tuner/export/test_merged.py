"""Exports of networks whose stages have merged kernels: these have constants of their own, in place of their parts'."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.templates.gpu.support import device_number
from tests.tuner.stages.networks import all_merged, branches, host
from tuner.devices import open_device
from tuner.export import export
from tuner.graph import Placed, Program
from tuner.graph.layout.choice import Planned
from tuner.module import BuildOptions, build_placed
from tuner.stages.calls import Calls
from tuner.stages.merge import Merging
from tuner.stages.rewrite import staged


@pytest.mark.parametrize("kind", ["cpu", "pocl", "intel"])
def test_merged_kernels_are_exported(kind: str, tmp_path: Path) -> None:
    device = host(2) if kind == "cpu" else open_device(f"opencl:{device_number(kind)}")

    def arrange(placed: Placed) -> Placed:
        calls = Calls.of(placed)
        merging = Merging(placed, calls, device)
        return staged(placed, calls, all_merged(merging), merging=merging)

    graph, options = branches(tmp_path), BuildOptions(arrange=arrange, portable=True)
    planned = Planned([0] * len(graph.steps))
    manifest = build_placed(graph, [device], planned, directory=tmp_path / "module", options=options)
    assert any(text.startswith("=") for text in manifest.stages)
    assert export(tmp_path / "module", tmp_path / "out", "net").checked == {"equal": True}
    program = Program.from_dict(json.loads((tmp_path / "module" / "program.json").read_text()))
    assert {*program.constants} <= {operand for call in program.calls for operand in call.operands}
