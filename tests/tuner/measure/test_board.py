"""Measuring on a board, over the real protocol on this machine: trials as anywhere else, and faults on the way."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.board_agent.support import NAME, Agent, eventually, paired_agent
from tests.tuner.measure.misbehaving import candidate
from tuner.devices import open_device
from tuner.devices.board import Board, Boards
from tuner.devices.board.boards import MOST_FAULTS
from tuner.errors import BadInput
from tuner.measure import BoardRunner, LocalRunner, MeasureOptions
from tuning_db.record import FailureKind

PLUGIN = "tests.tuner.measure.misbehaving"
DEVICE = f"board:{NAME}"
_AGENTS = Path(__file__).parents[2] / "board_agent"
FRAGILE, WARM = str(_AGENTS / "fragile_board.py"), str(_AGENTS / "warm_board.py")


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Agent, Board]]:
    folder = tmp_path_factory.mktemp("board")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(folder))
        with paired_agent(Path(folder), Boards(), "--alive", "1") as found:  # half as silent as others until it is gone
            yield found


@pytest.fixture(scope="module")
def runner(board) -> Iterator[BoardRunner]:
    assert board[1].name == NAME
    with BoardRunner(open_device(DEVICE, 1), MeasureOptions(plugins=(PLUGIN,), run_seconds=5)) as made:
        yield made


def bench_of(agent: Agent) -> int:
    """The process on the board that runs kernels now; 0: none does."""
    found = [0]
    with contextlib.suppress(psutil.NoSuchProcess):
        for process in psutil.Process(agent.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                found += [process.pid] if "board_agent.kernel_server" in process.cmdline() else []
    return max(found)


@pytest.mark.usefixtures("board")
def test_the_device_is_what_the_board_says() -> None:
    device = open_device(DEVICE, 1)
    assert (device.key.kind, device.threads, device.name) == ("cpu", 1, DEVICE)
    assert device.key.family == open_device("cpu", 1).key.family


def test_a_trial_is_as_good_as_one_made_here(runner) -> None:
    with LocalRunner(open_device("cpu", 1), MeasureOptions(plugins=(PLUGIN,))) as local:
        here = list(local.measure([candidate("good", tile) for tile in (1, 8)]))
    there = list(runner.measure([candidate("good", tile) for tile in (1, 8)]))
    assert [t.error for t in there] == [t.error for t in here]
    for near, far in zip(here, there, strict=True):
        assert far.seconds == pytest.approx(near.seconds, rel=4)


@pytest.mark.parametrize("does", ["run_abort", "run_segfault", "run_exit", "run_raise"])
def test_a_candidate_that_breaks_something_costs_its_own_trial_alone(runner, does: str) -> None:
    good, bad, after = runner.measure([candidate("good"), candidate(does), candidate("good", 2)])
    assert (good.ok, bad.ok, after.ok) == (True, False, True)
    assert bad.failure.kind in (FailureKind.RUN, FailureKind.WRONG_ANSWER)


def test_what_an_earlier_candidate_broke_is_not_blamed_on_a_later_one(runner) -> None:
    trials = runner.measure([candidate("good"), candidate("erase_data"), candidate("good", 2)])
    assert [t.ok for t in trials] == [True, False, True]


@pytest.mark.parametrize("does", ["wrong", "nan"])
def test_a_wrong_answer_is_found_out(runner, does: str) -> None:
    (trial,) = runner.measure([candidate(does)])
    assert trial.failure.kind is FailureKind.WRONG_ANSWER


def test_a_candidate_that_never_returns_is_ended_by_the_board(runner) -> None:
    (trial,) = runner.measure([candidate("run_hang")])
    assert trial.failure.kind is FailureKind.RUN_TIMEOUT
    assert "within 5 s" in trial.failure.message


def test_candidates_are_compared(runner) -> None:
    trials = runner.compare([candidate("good", tile) for tile in (1, 2, 8)])
    assert [len(t.times) for t in trials] == [runner.options.compare_rounds] * 3


def test_a_candidate_is_measured_while_others_are_built(runner) -> None:
    trials = runner.measure([candidate("good"), candidate("build_hang")])
    assert next(trials).ok
    builders = [child for child in psutil.Process().children(recursive=True) if child.name() == "tune-build"]
    trials.close()
    assert sum(not builder.is_running() for builder in builders) == 1, "the second build was not under way any more"
    assert next(runner.measure([candidate("good")])).ok


@pytest.mark.parametrize("fresh", [False, True])
def test_its_process_is_killed_by_somebody(board, runner, fresh: bool) -> None:
    agent, _ = board
    assert next(runner.measure([candidate("good")])).ok
    (client,) = runner._client._clients
    if fresh:
        client._discard()
        client.start()
    os.kill(bench_of(agent), signal.SIGKILL)
    assert next(runner.measure([candidate("good")])).ok


@contextlib.contextmanager
def killing(agent: Agent, most: int) -> Iterator[list[int]]:
    """Kill what runs kernels on the board as soon as it is there, and `most` - 1 that come in its place; the processes
    that were killed."""
    killed, over = list[int](), threading.Event()

    def kill() -> None:
        while len(killed) < most and not over.wait(0.01):
            if (pid := bench_of(agent)) and pid not in killed:
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        yield killed
    finally:
        over.set()
        killer.join()


def test_its_process_is_killed_before_it_is_ready(board, runner) -> None:
    """Such a start is tried again; a second in a row is the board's, which is asked until it can again."""
    agent, _ = board
    (client,) = runner._client._clients
    for most, losses in ((1, 0), (4, 1)):
        client._discard()
        eventually(lambda: not bench_of(agent))
        before = runner._client.losses
        with killing(agent, most) as killed:
            assert next(runner.measure([candidate("good")])).ok
        assert len(killed) == most
        assert runner._client.losses - before >= losses


def test_the_agent_goes_away_and_comes_back(board, runner) -> None:
    agent, _ = board
    assert next(runner.measure([candidate("good")])).ok
    agent.stop(signal.SIGKILL)

    def back() -> None:
        time.sleep(1)  # longer than the pause before the first probe
        agent.start()

    coming = threading.Thread(target=back)
    coming.start()
    (trial,) = runner.measure([candidate("good", 4)])
    coming.join()
    assert trial.ok


def test_an_idle_board_that_falls_silent_is_noticed(board, runner) -> None:
    """While this host builds, for example, and asks it for nothing."""
    agent, _ = board
    assert next(runner.measure([candidate("good")])).ok
    processes = [psutil.Process(agent.pid), *psutil.Process(agent.pid).children(recursive=True)]
    for process in processes:
        process.suspend()
    losses = runner._client.losses
    try:
        eventually(lambda: runner._client.losses > losses, 60)
    finally:
        for process in processes:
            process.resume()
    assert next(runner.measure([candidate("good", 2)])).ok


def waits_in(process: int) -> str:
    """The system call that a process waits in; empty where it is gone, "running" where it computes."""
    try:
        return Path(f"/proc/{process}/syscall").read_text().split()[0]
    except (OSError, IndexError):
        return ""


def test_a_candidate_that_takes_the_board_away_is_blamed(board, runner) -> None:
    """The agent dies whenever that candidate runs, and is started again, as a board's watchdog would."""
    agent, _ = board
    ended = threading.Event()
    assert next(runner.measure([candidate("good")])).ok
    idle, faults = waits_in(bench_of(agent)), Boards().record(NAME).faults

    def watchdog() -> None:
        while not ended.wait(0.2):
            seen = [waits_in(bench_of(agent)) for _ in range(3) if not ended.wait(0.1)]
            if len(set(seen)) == 1 and seen[0] not in (idle, "", "running"):
                agent.stop(signal.SIGKILL)
                agent.start()

    dog = threading.Thread(target=watchdog)
    dog.start()
    try:
        bad, good = runner.measure([candidate("run_hang"), candidate("good")])
    finally:
        ended.set()
        dog.join()
    assert Boards().record(NAME).faults == faults, "it was the candidate's fault, not the board's"
    assert bad.failure.kind is FailureKind.RUN
    assert "a board was lost 2 times over it" in bad.failure.message
    assert good.ok


def test_a_run_goes_on_though_a_candidate_takes_the_board_away_before_it_runs(
    board, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is lost while a library is loaded may be anything's fault; but not for ever."""
    assert board
    monkeypatch.setattr("tuner.measure.boards.fleet._PAUSES", (0.1,))
    agent = Agent(tmp_path, [FRAGILE, "load", "pause"])
    try:
        agent.pair(Boards(), "fragile")
        with BoardRunner(open_device("board:fragile", 1), MeasureOptions(plugins=(PLUGIN,))) as runner:
            first, bad, good = runner.measure([candidate("good"), candidate("run_hang"), candidate("good", 2)])
            losses = runner._client.losses
    finally:
        agent.stop()
    assert first.ok
    assert good.ok
    assert (bad.failure.kind, losses) == (FailureKind.DEVICE_LOST, 5)
    assert "lost 5 times before it could run" in bad.failure.message


@pytest.fixture
def warm(board, tmp_path: Path) -> Iterator[Path]:
    """The folder that is /sys of a board named "warm"."""
    assert board
    agent = Agent(tmp_path, [WARM, str(tmp_path / "sys")])
    try:
        agent.pair(Boards(), "warm")
        yield tmp_path / "sys/class/thermal"
    finally:
        agent.stop()


def write(path: Path, text: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def test_what_is_measured_on_a_board_that_is_slowed_down_is_marked(warm: Path) -> None:
    """And has its temperature with it, whether it was measured alone or compared with others."""
    write(warm / "thermal_zone0/temp", 81000)
    write(warm / "cooling_device0/type", "thermal-cpufreq-0")
    write(warm / "cooling_device0/cur_state", 0)
    tiles = [candidate("good", tile) for tile in (1, 8)]
    with BoardRunner(open_device("board:warm", 1), MeasureOptions(plugins=(PLUGIN,))) as runner:
        cool = [*runner.measure(tiles), *runner.compare(tiles)]
        write(warm / "cooling_device0/cur_state", 2)
        hot = [*runner.measure(tiles), *runner.compare(tiles)]
    assert [t.throttled for t in (*cool, *hot)] == [False] * 4 + [True] * 4
    assert {t.versions["condition"] for t in (*cool, *hot)} == {"81 C"}
    assert {t.versions["throttled"] for t in hot} == {"thermal-cpufreq-0 (cooling_device0) is at 2"}
    assert [len(t.times) for t in hot[2:]] == [runner.options.compare_rounds] * 2


@pytest.mark.usefixtures("board")
def test_what_cannot_be_opened_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="tune board pair nowhere"):
        open_device("board:nowhere")
    agent = Agent(tmp_path)
    try:
        agent.pair(Boards(), "second")
        with pytest.raises(BadInput, match="physical core"):
            open_device("board:second", 999)
        with pytest.raises(BadInput, match=r"no device opencl:99 here|pip install pyopencl"):
            open_device("board:second/opencl:99")
    finally:
        agent.stop()
    with pytest.raises(BadInput, match="tune board serve"):
        open_device("board:second")


@pytest.fixture(scope="module")
def three(board, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Agent]]:
    """Three agents of their own, known as a, b and c."""
    assert board
    agents = [Agent(Path(tmp_path_factory.mktemp(name))) for name in "abc"]
    try:
        for name, agent in zip("abc", agents, strict=True):
            agent.pair(Boards(), name)
        yield agents
    finally:
        for agent in agents:
            agent.stop()


@pytest.mark.sampled(2)
def test_equal_boards_share_a_run(three: list[Agent]) -> None:
    tiles = [candidate("good", tile) for tile in (1, 2, 4, 8)] * 3
    with BoardRunner(open_device("board:a+b+c", 1), MeasureOptions(plugins=(PLUGIN,))) as fleet:
        trials = list(fleet.measure(tiles))
    assert Counter(t.config for t in trials) == Counter(c.config for c in tiles)  # in the order in which they ended
    assert all(t.ok for t in trials)
    assert {t.device for t in trials} == {open_device("board:a", 1).key}
    assert all("came" in agent.log() for agent in three)


@pytest.mark.sampled(2)
def test_a_run_goes_on_with_the_other_boards(three: list[Agent]) -> None:
    with BoardRunner(open_device("board:a+b+c", 1), MeasureOptions(plugins=(PLUGIN,))) as fleet:
        assert all(t.ok for t in fleet.measure([candidate("good")] * 6))
        three[1].stop(signal.SIGKILL)
        assert all(t.ok for t in fleet.measure([candidate("good", 2)] * 12))
        assert fleet._client.losses >= 1
        three[1].start()
        assert all(t.ok for t in fleet.measure([candidate("good", 4)] * 12))
        assert len(fleet.compare([candidate("good", tile) for tile in (1, 8)])) == 2


def test_a_board_in_quarantine_waits_while_others_measure(three: list[Agent]) -> None:
    before = three[1].log().count("turn begins")
    for _ in range(MOST_FAULTS):
        Boards().note_fault("b")
    notices: list[str] = []
    with BoardRunner(open_device("board:a+b", 1), MeasureOptions(plugins=(PLUGIN,)), notices.append) as fleet:
        assert all(t.ok for t in fleet.measure([candidate("good")] * 6))
        assert any(n.startswith("board b is in quarantine for ") and "tune board ping b" in n for n in notices), notices
        assert three[1].log().count("turn begins") == before
        Boards().forgive("b")
        eventually(lambda: "board b measures for this run now" in notices)
        three[1].stop(signal.SIGKILL)
        eventually(lambda: Boards().record("b").faults == 1)
        three[1].start()


def test_a_board_in_quarantine_measures_where_there_is_no_other(three: list[Agent]) -> None:
    assert three
    for _ in range(MOST_FAULTS):
        Boards().note_fault("c")
    with BoardRunner(open_device("board:c", 1), MeasureOptions(plugins=(PLUGIN,))) as runner:
        assert next(runner.measure([candidate("good")])).ok
    assert Boards().record("c").quarantine > 0
    Boards().forgive("c")


@pytest.mark.usefixtures("three")
def test_a_fleet_is_of_equal_and_different_boards() -> None:
    with pytest.raises(BadInput, match="give different boards"):
        open_device("board:a+a")
    with pytest.raises(BadInput, match="no board is named 'd'"):
        open_device("board:a+d")
