"""Modules that are built here for a board, which verifies, times and runs them: this machine is the board."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.board_agent.support import Agent
from tests.board_agent.thin import thin_python
from tests.manual import ROOT, blocks
from tests.tuner.cli.conftest import run_tune
from tests.tuner.cli.test_placement import fill
from tests.tuner.export.support import Made
from tests.tuner.tiny_network import write_tiny_network
from tuner.devices.board import Boards, open_to_build
from tuner.devices.cpu import cpu_elsewhere
from tuner.graph import load_onnx
from tuner.module import BuildOptions, build, read_manifest
from tuner.studies.topology import DeviceSpec, Link, Memory, Topology, as_toml
from tuning_db.store import open_db


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a network, a database, and inputs."""
    write_tiny_network(tmp_path / "net.onnx")
    open_db(tmp_path / "edgetune.db").close()
    np.savez(tmp_path / "x.npz", data=np.random.default_rng(3).standard_normal((1, 3, 16, 16), dtype=np.float32))
    return tmp_path


@pytest.fixture
def thin(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The first OpenCL device of this machine as a board where TVM is not installed."""
    python = thin_python()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))
    agent = Agent(folder, python=python)
    try:
        agent.pair(Boards(), "pi")
        yield "board:pi/opencl:0"
    finally:
        agent.stop()


def _outputs(folder: Path, *words: str) -> dict[str, np.ndarray]:
    ran = run_tune("run", "net.tuned", "--input", "x.npz", "--output", "y.npz", *words, cwd=folder)
    assert ran.status == 0, ran.err
    with np.load(folder / "y.npz") as outputs:
        return dict(outputs)


def _is_built_run_timed_and_exported(folder: Path, device: str, name: str) -> None:
    """The module also runs here, as this machine is the board."""
    done = run_tune("build", "net.onnx", "--device", device, "-o", "net.tuned", "--json", cwd=folder)
    assert done.status == 0, done.err
    said = done.json()
    assert said["board"]["device"] == device
    assert said["board"]["seconds"] > 0
    assert (said["devices"], len(said["untuned"])) == ([name], 4)
    assert 0 < max(said["relative_error"].values()) < 1e-4
    assert read_manifest(folder / "net.tuned").errors == said["relative_error"]
    assert "4 of 4 operators have not been tuned for this device" in done.err
    there, here = _outputs(folder, "--device", device), _outputs(folder)
    assert there.keys() == here.keys()
    assert all(value.tobytes() == here[name].tobytes() for name, value in there.items())
    timed = run_tune("bench", "net.tuned", "--device", device, "--rounds", 2, "--minutes", 0.002, "--json", cwd=folder)
    assert timed.status == 0, timed.err
    assert (timed.json()["device"], timed.json()["profile"], timed.json()["peers"]) == (device, None, [])
    assert len(timed.json()["ours"]["block_seconds"]) == 2
    assert timed.json()["ours"]["runs"] >= 2
    assert "where the time goes is not known" in timed.err
    exported = run_tune("export", "net.tuned", "-o", "net.c", "--json", cwd=folder)
    assert exported.status == 0, exported.err
    assert exported.json()["checked"] == {"equal": True}
    checked = run_tune("export", "net.tuned", "--device", device, "-o", "net.c", "--json", cwd=folder)
    assert checked.status == 0, checked.err
    assert checked.json()["checked"]["device"] == device
    assert checked.json()["checked"]["errors"] == said["relative_error"]


def test_for_its_processor(board: str, folder: Path) -> None:
    _is_built_run_timed_and_exported(folder, board, "cpu")


@pytest.mark.night  # that for both its devices finds the same
def test_for_its_opencl_device(thin: str, folder: Path) -> None:
    _is_built_run_timed_and_exported(folder, thin, "opencl:0")
    for words in (("--device", "board:pi"), ("--device", "board:pi/cuda:0")):
        ran = run_tune("run", "net.tuned", *words, cwd=folder)
        assert ran.status == 2
    exported = run_tune("export", "net.onnx", "--device", thin, "-o", "out", "--json", cwd=folder)
    assert exported.status == 0, exported.err
    assert exported.json()["checked"]["device"] == thin
    lacking = run_tune("export", "net.onnx", "--device", "board:pi/opencl:99", "-o", "none", cwd=folder)
    assert (lacking.status, "there is no device opencl:99 here" in lacking.error) == (2, True)


@pytest.mark.slow
def test_for_its_opencl_device_and_its_processor(thin: str, folder: Path) -> None:
    """The dense layer falls back to the CPU, in each way of naming both devices."""
    both, built = f"{thin},cpu", ("--fallback", "dense", "--threads", 1, "--write-placement", "p.json")
    done = run_tune("build", "net.onnx", "--device", both, *built, "-o", "net.tuned", "--json", cwd=folder)
    assert done.status == 0, done.err
    said = done.json()
    assert (said["devices"], said["threads"], said["board"]["device"]) == (["opencl:0", "cpu"], 1, both)
    assert [(o["workload"]["op"], o["device"]) for o in said["operators"]] == [("conv2d", 0)] * 3 + [("dense", 1)]
    assert 0 < max(said["relative_error"].values()) < 1e-4
    assert "1 of 7 steps are computed by the CPU" in done.err
    here = _outputs(folder)
    for device in (both, f"{thin},board:pi"):
        there = _outputs(folder, "--device", device)
        assert all(value.tobytes() == here[name].tobytes() for name, value in there.items())
    timed = run_tune("bench", "net.tuned", "--device", both, "--rounds", 2, "--minutes", 0.002, "--json", cwd=folder)
    assert (timed.status, len(timed.json()["ours"]["block_seconds"])) == (0, 2), timed.err
    for model in ("net.tuned", "net.onnx"):
        exported = run_tune("export", model, "--device", both, "-o", "net.c", "--json", cwd=folder)
        assert exported.status == 0, exported.err
        assert exported.json()["checked"]["device"] == both
    words = ("--device", both, "--placement", "p.json", "-o", "again", "--json")
    again = run_tune("build", "net.onnx", *words, cwd=folder)
    assert [o["device"] for o in again.json()["operators"]] == [0, 0, 0, 1], again.err
    refused = run_tune("run", "net.tuned", "--device", "board:pi", cwd=folder)
    assert (refused.status, "was built for opencl:0 and cpu, not for board:pi" in refused.error) == (2, True)


@pytest.fixture
def tuned_there(thin: str, folder: Path) -> str:
    """The board's OpenCL device and its processor, with a database of what operators take there: the dense layer takes
    the OpenCL device too long, the convolutions the processor."""
    both = f"{thin},cpu"
    devices = open_to_build(both, 1, print)
    fill(folder / "known.db", folder / "net.onnx", devices, "cpu", lambda op: "opencl:0" if op == "dense" else "cpu")
    return both


def _is_placed_by(folder: Path, device: str, way: str, *words: object) -> str:
    """Return what was told meanwhile."""
    asked = ("--device", device, "--threads", 1, "--db", "known.db", "--placement", way, *words)
    done = run_tune("build", "net.onnx", *asked, "-o", way, "--json", cwd=folder)
    assert done.status == 0, done.err
    said = done.json()
    assert (said["placement"]["way"], said["placement"]["taken"], said["devices"]) == (way, way, ["opencl:0", "cpu"])
    placed = [(o["workload"]["op"], o["device"], o["source"]) for o in said["operators"]]
    assert placed == [("conv2d", 0, "device")] * 3 + [("dense", 1, "device")]
    assert said["board"]["seconds"] > 0
    assert 0 < max(said["relative_error"].values()) < 1e-4
    return done.err


@pytest.mark.slow
@pytest.mark.parametrize("way", ["exact", "mcmc"])
def test_placed_by_what_was_measured_there(tuned_there: str, folder: Path, way: str) -> None:
    names = ("opencl:0", "cpu")
    specs = tuple(DeviceSpec(name, name, 1e11, 1e10, "ram") for name in names)
    links = (Link(*names, 1e10, 1e-5), Link(*names[::-1], 1e10, 1e-5))
    (folder / "there.toml").write_text(as_toml(Topology("there", specs, (Memory("ram", 1e10),), links)))
    told = _is_placed_by(folder, tuned_there, way, "--topology", "there.toml", "--placement-seconds", 2)
    assert "copies between" not in told


@pytest.mark.night
def test_without_a_file_the_links_are_measured_there(tuned_there: str, folder: Path) -> None:
    told = _is_placed_by(folder, tuned_there, "exact")
    assert "of board pi: peaks" in told
    assert f"copies between opencl:0 and cpu, on {tuned_there}" in told


def _is_planned(folder: Path, device: str) -> list[str]:
    """Plan the network for devices of a board, and build the plan for them. Return the devices of its steps."""
    words = ("--device", device, "--threads", 1, "--db", "known.db")
    made = run_tune("plan", "net.onnx", *words, "-o", "plan.json", "--json", cwd=folder)
    assert made.status == 0, made.err
    plan = made.json()
    assert plan["measured"] > 0
    assert {step["source"] for step in plan["steps"]} <= {"device", "free"}
    assert f"--device {device} --plan plan.json" in made.err
    assert "steps and changes of layouts, on " in made.err
    again = run_tune("plan", "net.onnx", *words, "-o", "plan.json", "--json", cwd=folder)
    assert (again.json()["measured"], again.json()["seconds"]) == (0, plan["seconds"])
    built = run_tune("build", "net.onnx", "--device", device, "--plan", "plan.json", "-o", "m", "--json", cwd=folder)
    assert built.status == 0, built.err
    assert built.json()["threads"] == 1
    assert {o["source"] for o in built.json()["operators"]} == {"plan"}
    assert 0 < max(built.json()["relative_error"].values()) < 1e-4
    return [step["device"] for step in plan["steps"]]


@pytest.mark.night
def test_planned_by_what_its_processor_takes(board: str, folder: Path) -> None:
    fill(folder / "known.db", folder / "net.onnx", open_to_build(board, 1, print), "", lambda _: "")
    assert set(_is_planned(folder, board)) == {"cpu"}


@pytest.mark.night
def test_planned_by_what_both_of_its_devices_take(tuned_there: str, folder: Path) -> None:
    devices = _is_planned(folder, tuned_there)
    assert (devices[:3], devices[-1]) == (["opencl:0"] * 3, "cpu")
    refused = run_tune("build", "net.onnx", "--plan", "plan.json", "--device", "board:pi", "-o", "x", cwd=folder)
    assert (refused.status, "was made for opencl:0 and cpu, not for --device board:pi" in refused.error) == (2, True)


@pytest.mark.night
def test_the_manual_is_right_about_both(thin: str, folder: Path) -> None:
    """Its commands run, but for those that tune."""
    devices = open_to_build(f"{thin},cpu", None, print)
    fill(folder / "first.db", folder / "net.onnx", devices, "cpu", lambda op: "opencl:0" if op == "dense" else "cpu")
    section = [b for b in blocks(ROOT / "docs" / "boards.md") if b.section == "Its GPU and its CPU"]
    commands = [words[1:] for block in section for words in block.commands() if words[1] != "model"]
    assert [words[0] for words in commands] == ["build", "bench", "export", "plan", "build"]
    for words in commands:
        done = run_tune(*words, cwd=folder)
        assert done.status == 0, (words, done.err)
    assert [p.name for p in read_manifest(folder / "net.both").devices] == ["opencl:0"]  # which lacks nothing
    assert [p.name for p in read_manifest(folder / "net.planned").devices] == ["opencl:0", "cpu"]


@pytest.mark.slow
def test_placements_are_not_learned_from_runs_there(thin: str, folder: Path) -> None:
    pytest.importorskip("torch")
    words = ("--device", f"{thin},cpu", "--placement", "learned", "--placement-reward", "measured")
    done = run_tune("build", "net.onnx", *words, "-o", "m", cwd=folder)
    assert (done.status, "--placement-reward measured are for devices of this machine" in done.error) == (2, True)


def test_one_that_is_too_far_off_is_not_put_in_place(board: str, folder: Path) -> None:
    done = run_tune("build", "net.onnx", "--device", board, "-o", "net.tuned", "--tolerance", "1e-12", cwd=folder)
    assert done.status == 4
    assert "--tolerance allows more" in done.err
    assert not (folder / "net.tuned").exists()


def test_one_that_was_built_for_another_processor(board: str, folder: Path) -> None:
    here = platform.machine()
    other, machine = ("x86-64-v2", "x86_64") if here == "aarch64" else ("aarch64", "aarch64")
    build(load_onnx(folder / "net.onnx"), cpu_elsewhere(other), folder / "m", options=BuildOptions(link=False))
    for command in ("run", "bench"):
        done = run_tune(command, "m", "--device", board, cwd=folder)
        assert done.status == 2
        assert f"m: was built for {machine}, and board pi is {here}: build it with --device {board}" in done.error


def test_a_board_that_is_gone(agent: Agent, board: str, tiny: Made, folder: Path) -> None:
    agent.stop()
    module = str(tiny.module)
    for words in (("build", "net.onnx", "-o", "m"), ("run", module), ("bench", module)):
        done = run_tune(*words, "--device", board, cwd=folder)
        assert done.status == 2
        assert "nothing listens there" in done.error
    assert not (folder / "m").exists()


def test_a_module_of_this_machine_runs_there(board: str, tiny: Made, folder: Path) -> None:
    """It has the same processor."""
    done = run_tune("run", tiny.module, "--device", board, cwd=folder)
    assert done.status == 0, done.err
    assert "random inputs (data 1x3x16x16 float32)" in done.err


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["run", "MODULE", "--device", "cpu"], "--device cpu: give board:NAME"),
        (["run", "MODULE", "--device", "board:pi+other"], "networks are built for one board at a time: name one"),
        (["run", "MODULE", "--device", "board:pi,cpu"], "an OpenCL device of one board, or for both"),
        (["run", "MODULE", "--device", "board:pi/opencl:0"], "was built for cpu, not for board:pi/opencl:0"),
        (
            ["run", "MODULE", "--device", "board:pi", "--trace", "t.json"],
            "--trace t.json: a board times whole networks",
        ),
        (["run", "MODULE", "--device", "board:pi", "--input", "wrong.npz"], "unknown input 'wrong'"),
        (["bench", "MODULE", "--device", "board:pi", "--profile"], "leave --against and --profile away"),
        (["bench", "MODULE", "--device", "board:pi", "--against", "ort"], "leave --against and --profile away"),
        (["bench", "MODULE", "--device", "board:pi", "--threads", "99"], "--threads 99: board pi has"),
        (
            ["build", "net.onnx", "-o", "m", "--device", "board:pi", "--stages", "auto"],
            "are for devices of this machine",
        ),
        (["build", "net.onnx", "-o", "m", "--device", "board:pi", "--fallback", "dense"], "to what? Name the CPU"),
        (["build", "net.onnx", "-o", "m", "--device", "board:pi,board:pi/opencl:0"], "OpenCL device of one board"),
        (["build", "net.onnx", "-o", "m", "--device", "board:pi/opencl:0,board:other"], "for one board at a time"),
        (["build", "net.onnx", "-o", "m", "--device", "board:pi/cuda:0,cpu"], "OpenCL device of one board"),
        (
            ["export", "MODULE", "-o", "m", "--device", "board:pi/opencl:0"],
            "was built for cpu, not for board:pi/opencl",
        ),
        (["export", "MODULE", "-o", "m", "--device", "opencl:0"], "go with a model, or the device is a board's"),
        (["build", "net.onnx", "-o", "m", "--device", "board:nobody"], "no board is named 'nobody'"),
    ],
)
@pytest.mark.usefixtures("board")
def test_refused(words: list[str], line: str, tiny: Made, folder: Path) -> None:
    np.savez(folder / "wrong.npz", wrong=np.zeros(3, np.float32))
    done = run_tune(*(str(tiny.module) if w == "MODULE" else w for w in words), cwd=folder)
    assert done.status == 2
    assert line in done.error
    assert not (folder / "m").exists()
