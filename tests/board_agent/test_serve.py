"""An agent outlives what its system cannot give it for a while."""

from __future__ import annotations

import resource
import signal
import socket
from pathlib import Path

import psutil

from tests.board_agent.support import Agent, eventually, paired_agent
from tests.board_agent.test_access import can_be_used
from tuner.devices.board import Boards

# An agent whose system has no memory for a process, each time that it gets a signal.
NO_MEMORY = """
import errno, os, signal, sys
from board_agent import serve
real, missing = os.fork, []
def fork():
    if missing:
        raise OSError(missing.pop(), os.strerror(errno.ENOMEM))
    return real()
os.fork = fork
signal.signal(signal.SIGUSR1, lambda *_: missing.append(errno.ENOMEM))
sys.exit(serve.main())
"""


def test_too_many_open_files(tmp_path: Path) -> None:
    with paired_agent(tmp_path) as (agent, board):
        eventually(lambda: can_be_used(board))
        eventually(lambda: not psutil.Process(agent.pid).children())
        soft, hard = resource.prlimit(agent.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(agent.pid, resource.RLIMIT_NOFILE, (psutil.Process(agent.pid).num_fds(), hard))
        with socket.create_connection((board.address, board.port)):
            eventually(lambda: "a connection could not be taken: Too many open files" in agent.log())
        resource.prlimit(agent.pid, resource.RLIMIT_NOFILE, (soft, hard))
        eventually(lambda: can_be_used(board))


def test_no_memory_for_a_process(tmp_path: Path) -> None:
    agent = Agent(tmp_path, ["-c", NO_MEMORY])
    try:
        board = agent.pair(Boards(tmp_path / "boards"))
        psutil.Process(agent.pid).send_signal(signal.SIGUSR1)
        eventually(lambda: not can_be_used(board))
        assert "127.0.0.1: no process for it: Cannot allocate memory" in agent.log()
        assert can_be_used(board)
    finally:
        agent.stop()
