"""`tune -v` says on standard error what is done; without it nothing of that is said."""

from __future__ import annotations

from pathlib import Path

from tests.tuner.cli.conftest import run_tune
from tests.tuner.tiny_network import write_tiny_network

OP = ("op", "dense", "--shape", "1,16,10", "--threads", 1, "--trials", 2, "--json")


def test_steps_are_told_on_standard_error(tmp_path: Path) -> None:
    done = run_tune("-v", *OP, "--db", "t.db", cwd=tmp_path)
    assert done.status == 0
    assert done.json()["tasks"]
    for step in ("tuner.devices.device: opened cpu", "tuning_db.store: opened the tuning database", "2 configs tried"):
        assert step in done.err
    quiet = run_tune(*OP, "--db", "q.db", cwd=tmp_path)
    assert "tuning_db.store" not in quiet.err


def test_building_tells_what_became_of_the_model(tmp_path: Path) -> None:
    write_tiny_network(tmp_path / "net.onnx")
    assert run_tune(*OP, "--db", "t.db", cwd=tmp_path).status == 0
    done = run_tune("-v", "build", "net.onnx", "--threads", 1, "--db", "t.db", "-o", "out", cwd=tmp_path)
    assert done.status == 0, done.err
    assert "loading net.onnx" in done.err
    assert "configs for cpu" in done.err
    assert "lowered" in done.err
