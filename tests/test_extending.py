"""docs/extending.md adds to a copy of the repository, as a contributor would: files, and lines of registries."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.browser import needs_chromium, opened
from tests.manual import ROOT, blocks
from tests.tuning_db import made
from tuning_db.store import open_db

PAGE = ROOT / "docs" / "extending.md"
REGISTRIES = ("vision_ops/__init__.py", "tuner/cli/main.py", "tuner/devices/registry.py")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the packages in which the page's files and lines have been added."""
    folder = tmp_path_factory.mktemp("copy")
    for package in ("board_agent", "edgetune", "templates", "tuner", "tuning_db", "vision_ops"):
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    for block in blocks(PAGE):
        title = re.fullmatch(r'title="(a line of )?(\S+) in (\S+)"', block.info)
        if title is None:
            continue
        file = folder / title[3] / title[2]
        if title[1] is None:
            assert not file.exists()
            file.parent.mkdir(exist_ok=True)
            file.write_text(block.text)
        else:
            lines = file.read_text().splitlines(keepends=True)
            last = max(i for i, line in enumerate(lines) if re.fullmatch(r' {4}"\w+",\n', line))
            file.write_text("".join([*lines[: last + 1], block.text, *lines[last + 1 :]]))
    return folder


def _run(copy: Path, *words: object) -> str:
    env = {**os.environ, "PYTHONPATH": str(copy)}
    command = [sys.executable, *map(str, words)]
    done = subprocess.run(command, cwd=copy, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_one_line_in_each_registry_is_all(copy: Path) -> None:
    for name in REGISTRIES:
        added = len((copy / name).read_text().splitlines()) - len((ROOT / name).read_text().splitlines())
        assert added == 1, name


@pytest.mark.sampled(2)
def test_the_operator_is_tuned_and_right(copy: Path) -> None:
    _run(copy, "-m", "tuner.cli.names")
    words = ("op", "clip_boxes", "--shape", 1000, "--attr", "width=0.5", "--trials", 8, "--db", "clip.db", "--json")
    report = json.loads(_run(copy, "-m", "tuner", *words))
    assert report["tasks"][0]["trials"] == 8
    stats = json.loads(_run(copy, "-m", "tuner", "db", "stats", "--db", "clip.db", "--json"))
    assert stats["failures_by_kind"] == {}


def test_the_command_is_there(copy: Path) -> None:
    assert "templates" in _run(copy, "-m", "tuner", "--help")
    listed = json.loads(_run(copy, "-m", "tuner", "templates", "--json"))["templates"]
    assert "cpu.conv2d_direct" in listed
    assert listed == sorted(listed)


@pytest.mark.sampled(2)
def test_the_kind_of_device_is_tuned_on_its_core(copy: Path) -> None:
    listed = json.loads(_run(copy, "-m", "tuner", "devices", "--json"))["devices"]
    (core,) = [device for device in listed if device["name"] == "core:0"]
    assert (core["kind"], core["threads"], core["attrs"]["core"]) == ("cpu", 1, 0)
    words = ("op", "conv2d", "--shape", "1,8,14,14,8,3,3", "--padding", 1, "--device", "core:0", "--trials", 4)
    report = json.loads(_run(copy, "-m", "tuner", *words, "--db", "core.db", "--json"))
    assert report["tasks"][0]["trials"] == 4
    _run(copy, "-m", "tuner", "db", "export", "core.jsonl", "--db", "core.db")
    trials = [json.loads(line) for line in (copy / "core.jsonl").read_text().splitlines()]
    assert len(trials) >= 4  # the last comparison adds its own
    assert {json.dumps(trial["device"], sort_keys=True) for trial in trials} == {
        json.dumps({name: core[name] for name in trials[0]["device"]}, sort_keys=True)
    }


@pytest.mark.sampled(2)
def test_the_kind_of_device_is_pinned_named_and_refused_as_the_others_are(copy: Path) -> None:
    code = (
        "from tuner.devices import open_device, usable_cpus; d = open_device('core:0')\n"
        "assert d.kind.measuring_cores(d, usable_cpus()) == [min(usable_cpus())], usable_cpus()\n"
        "assert int(d.target.attrs['num-cores']) == 1"
    )
    _run(copy, "-c", code)
    _run(copy, "-m", "tuner.cli.names")
    assert "core:N" in _run(copy, "-m", "tuner", "op", "--help")
    env = {**os.environ, "PYTHONPATH": str(copy)}
    for device, problem in (("core:99999", "physical core(s) here"), ("core:x", "cuda:N, core:N or board:NAME")):
        command = [sys.executable, "-m", "tuner", "op", "dense", "--shape", "1,2,3", "--device", device]
        done = subprocess.run(command, cwd=copy, env=env, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (2, "")
        assert problem in done.stderr


@needs_chromium
def test_the_section_is_in_the_report_with_its_chart(copy: Path) -> None:
    registry = "tuner/report/page/sections/__init__.py"
    added = set((copy / registry).read_text().splitlines()) - set((ROOT / registry).read_text().splitlines())
    assert added == {'    "templates",'}
    with open_db(copy / "trials.db") as store:
        other = [replace(made.trial(), config=made.config(tile, "winograd")) for tile in (1, 2, 3)]
        store.add_many([made.trial(1), made.trial(2, seconds=None), *other, made.trial(3), made.trial(4)])
    _run(copy, "-m", "tuner", "report", "--db", "trials.db", "-o", "report.html")
    with opened((copy / "report.html").as_uri()) as page:
        assert page.page.locator("#sections a").last.inner_text() == "Templates"
        shown = page.page.eval_on_selector_all(
            '#templates [data-chart="templates"] rect', "bars => bars.map(b => [b.dataset.name, b.dataset.value])"
        )
        assert shown == [["direct", "4"], ["winograd", "3"]]
        page.page.fill("#filter-text", "no such task")
        assert "none is left" in page.page.locator("#templates").inner_text()
        assert page.complaints == []
