"""What is shipped: whole, right, nobody's own, read when it is asked for, and labelled by how near it is."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

from tests.tuning_db.made import CONV
from tuning_db import logs, shipped
from tuning_db.record import DeviceKey, Trial, tolerance_of

ROOT = Path(__file__).parents[2]


def first(kind: str) -> Trial:
    return next(t for t in shipped.trials() if t.device.kind == kind)


def test_it_is_part_of_the_package() -> None:
    size = len((files("tuning_db") / shipped.FILE).read_bytes())
    assert 1_000 < size < 300_000
    setup = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert setup["package-data"]["tuning_db"] == [shipped.FILE]


def test_every_record_was_verified_and_says_nothing_of_whose_machine_it_was() -> None:
    found = shipped.trials()
    assert len(found) > 100
    assert len({(t.workload, t.device) for t in found}) == len(found)
    assert {t.device.kind for t in found} >= {"cpu", "opencl"}
    for trial in found:
        assert trial.ok
        assert trial.error is not None
        assert trial.error <= tolerance_of(trial.workload.dtype)
        record = json.loads(logs.line_of(trial))
        assert record.pop("format") == "edgetune-trial/1"
        assert not re.search(r"[/\\~@]", json.dumps(record)), record  # no path, no name of a machine or user


def test_an_answer_says_how_near_it_is() -> None:
    trial = first("cpu")
    device = trial.device
    same = shipped.best(trial.workload, device)
    assert same is not None
    assert (same.trial, same.source) == (trial, "shipped")
    more_threads = replace(device, attrs={**device.attrs, "threads": 64})
    relative = shipped.best(trial.workload, more_threads)
    assert relative is not None
    assert (relative.trial, relative.source) == (trial, "shipped family")
    assert shipped.best(trial.workload, replace(device, family="x86_64-other")) is None
    assert shipped.best(trial.workload, replace(device, kind="opencl")) is None
    of_others = shipped.best(trial.workload, device, usable=lambda t: t.device != device)
    assert of_others is None or of_others.source == "shipped family"
    assert shipped.best(trial.workload, device, usable=lambda _: False) is None
    assert shipped.best(CONV, device) is None


def test_the_most_alike_device_comes_first() -> None:
    by_workload: dict[str, list[Trial]] = {}
    for trial in shipped.trials():
        if trial.device.kind == "opencl":
            by_workload.setdefault(trial.workload.key, []).append(trial)
    one, two = next(found for found in by_workload.values() if len(found) == 2)
    for mine, other in ((one, two), (two, one)):
        attrs = {**mine.device.attrs, "driver": "another"}
        here = DeviceKey(mine.device.kind, mine.device.family, mine.device.model, attrs)
        found = shipped.best(mine.workload, here)
        assert found is not None
        assert (found.trial, found.source) == (mine, "shipped family")
        found = shipped.best(mine.workload, here, usable=lambda t, mine=mine: t != mine)
        assert found is not None
        assert found.trial == other


def test_commands_start_without_it() -> None:
    code = "import sys, tuner.cli.main; print('tuning_db.shipped' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "False"


def test_cpus_with_avx512_take_configs_of_their_own_model_alone() -> None:
    wide = next(t for t in shipped.trials() if t.device.family == "x86_64-avx512")
    assert shipped.best(wide.workload, replace(wide.device, model="another")) is None
    narrow = next(t for t in shipped.trials() if t.device.family == "x86_64-avx2")
    found = shipped.best(narrow.workload, replace(narrow.device, model="another"))
    assert found is not None
    assert found.source == "shipped family"
