"""The runner of benchmarks/on_gpu.py: what becomes of a step, of a file with results, and of the time. Steps are real
processes; what the steps of the benchmark measure is known by its dry run alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.benchmarks.scripts import FOLDER, script

INTERRUPTED = """
import json, pathlib, signal, sys
import on_gpu, on_gpu_steps
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests may ignore it
settings = on_gpu_steps.Settings(**json.loads(sys.argv[1]))
results = on_gpu.Results.opened(pathlib.Path(sys.argv[2]), settings, False)
on_gpu.run([on_gpu_steps.Step(**json.loads(text)) for text in sys.argv[3:]], settings, results, 60.0)
"""
on_gpu = script("on_gpu")
steps = script("on_gpu_steps")


def step(name: str, *arguments: Any, needs: tuple[str, ...] = ()) -> Any:
    return steps.Step(name, 720.0, "", f"tests.benchmarks.gpu_steps:{name}", needs, arguments)


def settings(folder: Path, *, seconds: float = 300.0, dry: bool = True) -> Any:
    return steps.Settings("cpu", str(folder), seconds, dry)


def has_ended(number: int) -> bool:
    return not psutil.pid_exists(number) or psutil.Process(number).status() == psutil.STATUS_ZOMBIE


def test_every_steps_function_is_there() -> None:
    found = steps.all_steps(("/somewhere/yolov8n.onnx",))
    assert "network-yolov8n" in found
    for each in found.values():
        module, _, name = each.function.partition(":")
        assert callable(getattr(script(module), name)), each.name


def test_a_step_ends_with_its_rows(tmp_path: Path) -> None:
    outcome = on_gpu.run_step(step("rows", 3), settings(tmp_path))
    assert (outcome["state"], outcome["reason"]) == ("done", None)
    assert outcome["rows"] == [{"number": 0}, {"number": 1}, {"number": 2}]


def test_a_wrong_row_makes_a_step_fail(tmp_path: Path) -> None:
    outcome = on_gpu.run_step(step("wrong"), settings(tmp_path))
    assert (outcome["state"], outcome["reason"]) == ("failed", "status 1: 1 rows are wrong")
    assert len(outcome["rows"]) == 2


def test_a_crash_is_told_and_keeps_earlier_rows(tmp_path: Path) -> None:
    outcome = on_gpu.run_step(step("crashes"), settings(tmp_path))
    assert outcome["state"] == "failed"
    assert outcome["reason"].endswith("the device is lost")
    assert outcome["rows"] == [{"before": True}]


def test_a_late_step_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    number = tmp_path / "pid"
    outcome = on_gpu.run_step(step("endless", str(number)), settings(tmp_path, seconds=10.0))
    assert outcome["state"] == "late"
    assert outcome["rows"] == [{"before": True}]
    assert has_ended(int(number.read_text()))


def test_a_step_that_cannot_run_is_skipped_with_its_reason(tmp_path: Path) -> None:
    outcome = on_gpu.run_step(step("unable"), settings(tmp_path))
    assert (outcome["state"], outcome["reason"], outcome["rows"]) == ("skipped", "no such device", [])


@pytest.mark.parametrize(
    ("need", "reason"),
    [
        ("module no_such_module", "no_such_module is not installed"),
        ("tool no-such-tool", "no-such-tool is not on the path"),
        ("agent", "no Python for the agent"),
    ],
)
def test_a_step_whose_needs_are_missing_is_skipped(tmp_path: Path, need: str, reason: str) -> None:
    outcome = on_gpu.run_step(step("rows", 3, needs=(need,)), settings(tmp_path, dry=False))
    assert outcome["state"] == "skipped"
    assert reason in outcome["reason"]


def test_a_file_is_gone_on_with(tmp_path: Path) -> None:
    """What is done stays; what failed runs again."""
    path, given = tmp_path / "found.json", settings(tmp_path)
    first = on_gpu.Results.opened(path, given, resume=False)
    on_gpu.run([step("rows", 1), step("wrong")], given, first, 60.0)
    again = on_gpu.Results.opened(path, given, resume=True)
    assert again.found == json.loads(path.read_text())
    assert [again.wants(name) for name in ("rows", "wrong", "never")] == [False, True, True]
    assert again.found["seconds"] == sum(found["seconds"] for found in again.found["steps"].values())


def test_an_interrupt_ends_the_step_and_keeps_what_is_done(tmp_path: Path) -> None:
    number, path = tmp_path / "pid", tmp_path / "found.json"
    run = [sys.executable, "-c", INTERRUPTED, settings(tmp_path).to_json(), str(path)]
    chosen = [step("rows", 2), step("endless", str(number)), step("wrong")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(FOLDER), str(FOLDER.parent)])}
    child = subprocess.Popen([*run, *(each.to_json() for each in chosen)], env=env, start_new_session=True)
    while not (number.exists() and number.read_text()) and child.poll() is None:
        time.sleep(0.05)
    child.send_signal(signal.SIGINT)
    assert child.wait() == 0
    found = json.loads(path.read_text())["steps"]
    assert {name: each["state"] for name, each in found.items()} == {"rows": "done", "endless": "interrupted"}
    assert found["endless"]["rows"] == [{"before": True}]
    assert has_ended(int(number.read_text()))


def test_no_step_begins_without_time(tmp_path: Path) -> None:
    given = settings(tmp_path)
    results = on_gpu.Results.opened(tmp_path / "found.json", given, resume=False)
    on_gpu.run([step("rows", 1)], given, results, on_gpu.LEAST_SECONDS / 60 / 2)
    assert results.found["steps"] == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "cannot be gone on with"),
        ("[]", "is not a file of this script"),
        ('{"steps": {}, "dry": true, "device": "cpu"}', "was made with dry True"),
        ('{"steps": {}, "dry": false, "device": "cuda:1"}', "was made with device cuda:1"),
    ],
)
def test_another_file_is_refused_in_one_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "found.json"
    path.write_text(text)
    with pytest.raises(SystemExit, match=said):
        on_gpu.Results.opened(path, settings(tmp_path, dry=False), resume=True)


def test_a_file_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    path.write_text("{}")
    with pytest.raises(SystemExit, match="--resume"):
        on_gpu.Results.opened(path, settings(tmp_path), resume=False)
