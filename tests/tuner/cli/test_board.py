"""`tune board` and tuning on a board, as a user does both: an agent, a pairing by its code, a measurement."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from board_agent.facts import tvm_version
from tests.board_agent.support import Agent, free_port
from tests.tuner.cli.conftest import TUNE, Done, run_tune
from tuner.cli.board import _tvm
from tuner.devices.board import Boards, Link, Record
from tuner.devices.board.boards import MOST_FAULTS

WARM = str(Path(__file__).parents[2] / "board_agent" / "warm_board.py")
CONV = ("conv2d", "--shape", "1,16,14,14,16,3,3", "--padding", 1, "--threads", 1, "--trials", 6)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's configuration of the test's own."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def agent(home: Path) -> Iterator[Agent]:
    made = Agent(home)
    try:
        made.pair(Boards(), "pi")
        yield made
    finally:
        made.stop()


def tune(*words: object, cwd: Path) -> Done:
    return run_tune(*words, cwd=cwd)


def test_pair_with_the_code_that_is_shown(home: Path) -> None:
    port = free_port()
    shown = [TUNE, "board", "pair", "pi", "--address", "127.0.0.1", "--port", str(port), "--json"]
    with subprocess.Popen(shown, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as pairing:
        assert pairing.stderr is not None
        code = next(line.rpartition(" ")[2].strip() for line in pairing.stderr if "--pair" in line)
        serving = [TUNE, "board", "serve", "--port", str(port), "--pair", code, "--folder", str(home / "agent")]
        with subprocess.Popen(serving, stdout=subprocess.PIPE, text=True) as board:
            assert board.stdout is not None
            assert next(board.stdout).startswith("paired with")
            assert next(board.stdout) == f"listening on 127.0.0.1:{port}\n"
            assert pairing.wait() == 0
            listed = tune("board", "list", "--json", cwd=home).json()["boards"]
            assert [(b["name"], b["state"]) for b in listed] == [("pi", "ready")]
            assert "kernels are kept from" in tune("board", "ping", "pi", cwd=home).out
            board.terminate()
    assert tune("board", "forget", "pi", cwd=home).status == 0
    assert tune("board", "list", cwd=home).out.startswith("no boards")


@pytest.mark.usefixtures("agent")
def test_tune_on_a_board_and_go_on(home: Path) -> None:
    done = tune("op", *CONV, "--device", "board:pi", "--db", "t.db", "--json", cwd=home)
    assert done.status == 0, done.err
    assert done.json()["new_trials"] == 6
    again = tune("op", *CONV, "--device", "board:pi", "--db", "t.db", "--json", cwd=home)
    assert again.json()["new_trials"] == 0
    (known,) = tune("db", "best", "--db", "t.db", "--json", cwd=home).json()["best"]
    assert known["device"]["kind"] == "cpu"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("op", *CONV, "--device", "board:nowhere"), "tune board pair nowhere"),
        (("op", *CONV, "--device", "board:Not a name"), "cannot be a board's name"),
        (("board", "ping", "nowhere"), "no board is named 'nowhere'"),
        (("board", "pair", "../x", "--address", "127.0.0.1"), "cannot be a board's name"),
        (("board", "pair", "x", "--address", "203.0.113.1"), "give this host's own address"),
        (("board", "pair", "x", "--address", "127.0.0.1", "--seconds", 1), "expired"),
        (("board", "serve", "--pair", "no code"), "not a pairing code"),
        (("board", "serve", "--turn", 0), "--turn must be a positive number"),
        (("board", "serve", "--alive", 61), "--alive must be a positive number of seconds, 60 at most, not 61"),
        (("board", "serve", "--alive", -1), "--alive must be a positive number"),
        (("board", "forget", "nowhere"), "no board is named"),
    ],
)
def test_what_is_refused_is_one_line(home: Path, words: tuple[object, ...], why: str) -> None:
    done = tune(*words, cwd=home)
    assert done.status == 2
    assert why in done.err.splitlines()[-1]


def test_a_port_that_is_taken_does_not_use_up_the_code(home: Path) -> None:
    shown = [TUNE, "board", "pair", "pi", "--address", "127.0.0.1", "--port", str(free_port())]
    with (
        subprocess.Popen(shown, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as pairing,
        socket.create_server(("127.0.0.1", 0)) as taken,
    ):
        assert pairing.stderr is not None
        code = next(line.rpartition(" ")[2].strip() for line in pairing.stderr if "--pair" in line)
        port = taken.getsockname()[1]
        serving = ("board", "serve", "--port", port, "--pair", code, "--folder", home / "agent")
        done = tune(*serving, cwd=home)
        assert (done.status, done.out) == (2, "")
        assert f"127.0.0.1:{port}: cannot be listened on (Address already in use)" in done.error
        taken.close()
        with subprocess.Popen([TUNE, *map(str, serving)], stdout=subprocess.PIPE, text=True) as board:
            assert board.stdout is not None
            assert next(board.stdout).startswith("paired with")
            board.terminate()
        assert pairing.wait() == 0


def test_ping_shows_a_person_how_the_board_feels(agent: Agent, home: Path) -> None:
    """A board that is slowed down, of another TVM; and its faults are forgotten when it answers."""
    agent.stop()
    sys = home / "sys"
    for path, text in {
        "class/thermal/thermal_zone0/temp": "81000",
        "class/thermal/cooling_device0/type": "thermal-cpufreq-0",
        "class/thermal/cooling_device0/cur_state": "2",
        "devices/system/cpu/cpu0/cpufreq/scaling_cur_freq": "600000",
        "devices/system/cpu/cpu0/cpufreq/scaling_max_freq": "1200000",
        "devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq": "1800000",
    }.items():
        (sys / path).parent.mkdir(parents=True, exist_ok=True)
        (sys / path).write_text(f"{text}\n")
    warm = Agent(home, [WARM, str(sys)])
    warm.port = agent.port
    warm.start()
    try:
        for _ in range(MOST_FAULTS):
            Boards().note_fault("pi")
        (listed,) = tune("board", "list", "--json", cwd=home).json()["boards"]
        assert (listed["faults"], listed["quarantine"] > 0) == (MOST_FAULTS, True)
        assert "ready; in quarantine for " in tune("board", "list", cwd=home).out.replace("\n", " ")
        pinged = tune("board", "ping", "pi", cwd=home).out
    finally:
        warm.stop()
    shown = dict(line.strip().split(maxsplit=2)[::2] for line in pinged.splitlines() if line.split()[1:2] == ["MHz"])
    assert shown == {"cpu0": "600 of 1800"}
    for text in (
        "thermal_zone0 C",
        "81",
        "thermal-cpufreq-0 (cooling_device0) is at 2",
        tvm_version(),
        f"cpu, {os.uname().machine}",
    ):
        assert text in pinged, pinged
    assert "in quarantine for" in pinged
    assert Boards().record("pi") == Record()


def test_a_board_of_another_tvm_is_told() -> None:
    facts = {"tvm": "0.1"}
    assert _tvm(facts) == f"0.1, and {tvm_version()} here: install apache-tvm=={tvm_version()} there"
    assert _tvm({"tvm": tvm_version()}) == tvm_version()
    assert _tvm({"tvm": ""}).startswith("none")


def test_others_see_who_measures(agent: Agent, home: Path) -> None:
    assert agent.port
    settings = {"device": "cpu", "form": "library", "threads": 1, "memory_bytes": 1 << 30}
    with Link(Boards()["pi"]) as link:
        link.start(settings, 60.0)
        (listed,) = tune("board", "list", "--json", cwd=home).json()["boards"]
        assert listed["state"].endswith(" measures")
        assert listed["facts"]["machine"] == link.facts["machine"]
        pinged = tune("board", "ping", "pi", cwd=home)
        assert (pinged.status, "not asked now: " in pinged.out, " measures" in pinged.out) == (0, True, True)
        link.ask({"do": "ready"})


@pytest.mark.parametrize(
    ("device", "why"),
    [
        ("cpu,board:pi", "name devices of the board alone, such as board:NAME/opencl:0,cpu"),
        ("board:pi+other", "networks are built for one board at a time"),
        ("board:pi/cuda:0,cpu", "an OpenCL device of one board, or for both"),
    ],
)
def test_a_plan_is_made_for_one_machine(agent: Agent, home: Path, device: str, why: str) -> None:
    assert agent.port
    tune("zoo", "squeezenet1.0", "-o", "m.onnx", cwd=home)
    done = tune("plan", "m.onnx", "--device", device, "-o", "x", cwd=home)
    assert (done.status, why in done.error) == (2, True)


def test_other_libraries_do_not_compete_on_a_board(agent: Agent, home: Path) -> None:
    assert agent.port
    tune("zoo", "squeezenet1.0", "-o", "m.onnx", cwd=home)
    done = tune("model", "m.onnx", "--device", "board:pi", "--vendor", "onnxruntime", cwd=home)
    assert (done.status, "run in this process" in done.error) == (2, True)


def test_the_agent_in_one_file(home: Path) -> None:
    assert tune("board", "agent", "-o", "a.pyz", cwd=home).status == 0
    shown = subprocess.run([TUNE.with_name("python"), "a.pyz", "--help"], cwd=home, capture_output=True, text=True)
    assert (shown.returncode, "--pair" in shown.stdout) == (0, True)
