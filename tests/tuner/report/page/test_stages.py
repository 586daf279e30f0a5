"""A module in stages: the page shows which of its kernels run at the same time, as its program launches them."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tvm

from tests.browser import Opened, needs_chromium, opened
from tests.manifests import write_manifest
from tests.templates.gpu.support import device_number
from tests.tuner.stages.networks import branches
from tests.tuner.stages.test_rewrite import by_branch
from tuner.devices import open_device
from tuner.devices.opencl import ASIDE, BACK, JOIN
from tuner.errors import BadInput
from tuner.graph import Placed
from tuner.graph.layout.choice import Planned
from tuner.module import BuildOptions, build_placed, read_manifest
from tuner.report.page import collect, render
from tuner.report.page.flow import flow_of
from tuner.report.simulated import simulated
from tuner.stages import Stage
from tuner.stages.calls import Calls
from tuner.stages.rewrite import staged
from tuning_db.store import open_db


def _in_stages(placed: Placed) -> Placed:
    calls = Calls.of(placed)
    return staged(placed, calls, by_branch(calls))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a network of two blocks of three branches as modules, "staged" and "alone", and what a page says of each."""
    folder = tmp_path_factory.mktemp("staged")
    graph, device = branches(folder), open_device(f"opencl:{device_number('pocl')}")
    for name, arrange in (("staged", _in_stages), ("alone", None)):
        build_placed(
            graph,
            [device],
            Planned([0] * len(graph.steps)),
            directory=folder / name,
            options=BuildOptions(arrange=arrange),
        )
        with open_db(folder / "t.db") as store:
            page = render(collect(store, [folder / name]))
        (folder / f"{name}.html").write_text(page, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def nodes(folder: Path) -> list[dict[str, Any]]:
    return flow_of(folder / "staged", read_manifest(folder / "staged"))["nodes"]


def _launched(folder: Path) -> list[list[Counter[str]]]:
    """By the program alone: the kernels of every set of groups that are launched side by side."""
    load = tvm.get_global_func("ffi.Module.load_from_file.relax.VMExecutable")
    text = str(load(str(folder / read_manifest(folder).network))["as_text"]())
    sets, groups = [], []
    for name in re.findall(r"^\s*call\s+(\S+)", text.partition("@main:\n")[2].partition("\n@")[0], re.MULTILINE):
        if name in (ASIDE, BACK):
            groups.append(Counter())
        elif name == JOIN:
            sets.append(groups)
            groups = []
        elif groups and not name.startswith("vm.builtin."):
            groups[-1][name] += 1
    return sets


def test_groups_are_those_that_the_program_launches_side_by_side(folder: Path, nodes: list[dict[str, Any]]):
    manifest = read_manifest(folder / "staged")
    stages = [Stage.from_text(text) for text in manifest.stages]
    wide = [s for s, stage in enumerate(stages) if len(stage.groups) > 1]
    found = []
    for s in wide:
        members = [node for node in nodes if node["stage"] == s]
        sizes = Counter(n["group"] for n in members)
        assert sizes == {g: len(group) for g, group in enumerate(stages[s].groups)}
        function = [n["name"] if n["operator"] is None else manifest.operators[n["operator"]].function for n in members]
        groups = [Counter(f for f, n in zip(function, members, strict=True) if n["group"] == g) for g in sorted(sizes)]
        found.append(groups[::-1])  # the longest is launched last
    assert [len(groups) for groups in found].count(3) == 2
    assert found == _launched(folder / "staged")
    assert [n["kind"] for n in nodes if n["stage"] is None] == ["input", "output"]


def test_nothing_reads_what_runs_at_the_same_time(folder: Path, nodes: list[dict[str, Any]]):
    edges = flow_of(folder / "staged", read_manifest(folder / "staged"))["edges"]
    inner = [(nodes[a], nodes[b]) for a, b in edges if nodes[a]["stage"] is not None and nodes[b]["stage"] is not None]
    assert any(a["stage"] == b["stage"] for a, b in inner)
    for a, b in inner:
        assert a["stage"] < b["stage"] or (a["stage"], a["group"]) == (b["stage"], b["group"])


def test_groups_of_a_stage_are_simulated_at_the_same_time(folder: Path):
    """Operators of 1, 2, ... ms: one after the other they take the sum; in stages, each stage its longest group."""
    took = {}
    for name in ("alone", "staged"):
        manifest = read_manifest(folder / name)
        timed = tuple(replace(o, seconds=1e-3 * (i + 1)) for i, o in enumerate(manifest.operators))
        flow = flow_of(folder / name, manifest)
        spans = simulated(replace(manifest, operators=timed), flow)
        assert sorted(s.operator for s in spans) == list(range(len(timed)))
        assert all(s.seconds == timed[s.operator].seconds for s in spans)
        took[name] = max(s.begin + s.seconds for s in spans)
        stage = {n["operator"]: n["stage"] for n in flow["nodes"] if n["operator"] is not None}
        of_stage: dict[int, dict[int, float]] = {}
        for s in spans:
            groups = of_stage.setdefault(-1 if stage[s.operator] is None else stage[s.operator], {})
            groups[s.group] = groups.get(s.group, 0.0) + s.seconds
        assert took[name] == pytest.approx(sum(max(groups.values()) for groups in of_stage.values()))
    assert took["staged"] < took["alone"]


def test_one_kernel_after_the_other_has_no_stages(folder: Path):
    flow = flow_of(folder / "alone", read_manifest(folder / "alone"))
    assert {(n["stage"], n["group"]) for n in flow["nodes"]} == {(None, None)}


@pytest.mark.parametrize("stages", [["0|1", "2"], ["0"] * 99, ["zero"], ["=0"]])
def test_a_manifest_with_other_stages_than_its_program_is_refused(folder: Path, tmp_path: Path, stages: list[str]):
    module = tmp_path / "module"
    shutil.copytree(folder / "staged", module)
    manifest = json.loads((module / "manifest.json").read_text())
    write_manifest(module, {**manifest, "stages": stages})
    with pytest.raises(BadInput, match="its manifest has other stages than its program: build the module again"):
        flow_of(module, read_manifest(module))


def _boxes(page: Opened, selector: str) -> list[dict[str, Any]]:
    """Of drawn rectangles: where they are, and their data."""
    return page.page.eval_on_selector_all(
        selector,
        """found => found.map(r => ({ ...r.dataset, x: r.x.baseVal.value, y: r.y.baseVal.value,
            right: r.x.baseVal.value + r.width.baseVal.value, bottom: r.y.baseVal.value + r.height.baseVal.value }))""",
    )


@needs_chromium
def test_the_graph_frames_what_runs_at_the_same_time(folder: Path, nodes: list[dict[str, Any]]):
    with opened((folder / "staged.html").as_uri(), offline=True) as page:
        boxes, frames = _boxes(page, "[data-node]"), _boxes(page, "[data-groups]")
        widths = [text.count("|") + 1 for text in read_manifest(folder / "staged").stages]
        assert [(int(f["stage"]), int(f["groups"])) for f in frames] == [(s, w) for s, w in enumerate(widths) if w > 1]
        for box, node in zip(boxes, nodes, strict=True):
            around = [f["stage"] for f in frames if f["x"] < box["x"] and box["right"] < f["right"]]
            inside = [f["stage"] for f in frames if f["y"] < box["y"] and box["bottom"] < f["bottom"]]
            wide = [f["stage"] for f in frames if int(f["stage"]) == node["stage"]]
            assert [stage for stage in around if stage in inside] == wide
        for frame in frames:
            members = [box for box in boxes if box.get("stage") == frame["stage"]]
            columns = {(box["group"], box["x"]) for box in members}
            assert len(columns) == len({x for _, x in columns}) == int(frame["groups"])
            top = min(box["y"] for box in members)
            assert sum(box["y"] == top for box in members) == int(frame["groups"])
        assert len({(box["x"], box["y"]) for box in boxes}) == len(boxes)
        page.page.locator('[data-chart="graph-0"]').focus()
        walked = next(i for i, node in enumerate(nodes) if node["group"] == 1 and widths[node["stage"]] == 3)
        for _ in range(walked + 1):
            page.page.keyboard.press("ArrowRight")
        text = page.page.locator("#readout-graph-0").inner_text()
        assert f"; stage {nodes[walked]['stage'] + 1}, group 2 of 3, at the same time as " in text
        assert page.serious_faults() == []
        assert page.complaints == []
        page.keep_screenshot("report-stages")


@needs_chromium
def test_the_table_of_layers_says_what_runs_beside_each(folder: Path, nodes: list[dict[str, Any]]):
    with opened((folder / "staged.html").as_uri()) as page:
        names, stages = page.texts("layers-0", "layer"), page.numbers("layers-0", "stage")
        beside = page.texts("layers-0", "at the same time as")
        assert names == [n["name"] for n in nodes if n["operator"] is not None]
        for layer, (name, stage, others) in enumerate(zip(names, stages, beside, strict=True)):
            (node,) = [n for n in nodes if n["operator"] == layer]
            assert (name, stage) == (node["name"], node["stage"] + 1)
            rest = [n["name"] for n in nodes if n["stage"] == node["stage"] and n["group"] != node["group"]]
            assert sorted(filter(None, others.split(", "))) == sorted(rest)
        assert any(beside)
    with opened((folder / "alone.html").as_uri()) as page:
        heads = [h.rstrip(" ▲▼") for h in page.page.locator('[data-table="layers-0"] th').all_inner_texts()]
        assert not {"stage", "at the same time as"} & set(heads)
        assert _boxes(page, "[data-groups]") == []
