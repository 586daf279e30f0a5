"""A link that carries little: what is under way is told from a board that is gone."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.board_agent.support import paired_agent
from tuner.devices.board import Board, Link

BYTES_A_SECOND = 250_000
ALIVE_SECONDS = 0.6
PIECE = 4096
SETTINGS = {"device": "cpu", "form": "library", "threads": 1, "memory_bytes": 1 << 30}


def carry(source: socket.socket, sink: socket.socket, pause: float) -> None:
    try:
        while data := source.recv(PIECE):
            sink.sendall(data)
            time.sleep(pause * len(data) / PIECE)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        return  # the test is over


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Board]:
    with paired_agent(Path(tmp_path_factory.mktemp("board")), None, "--alive", str(ALIVE_SECONDS)) as (_, found):
        yield found


@pytest.fixture
def slow(board: Board) -> Iterator[Board]:
    """The board, behind a link that is slow towards it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, PIECE)

        def serve() -> None:
            host, _ = listener.accept()
            with host, socket.create_connection((board.address, board.port)) as agent:
                back = threading.Thread(target=carry, args=(agent, host, 0.0))
                back.start()
                carry(host, agent, PIECE / BYTES_A_SECOND)
                back.join()

        serving = threading.Thread(target=serve)
        serving.start()
        yield replace(board, port=listener.getsockname()[1])
        serving.join()


@pytest.mark.parametrize("kept", [None, 1 << 14])
def test_a_large_request_through_a_slow_link(slow: Board, kept: int | None) -> None:
    """Whether the system takes it at once and sends it by and by (None), or takes no more than the link carries."""
    data, began = bytes(range(256)) * 4096, time.monotonic()
    with Link(slow) as link:
        if kept is not None:
            link._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, kept)
        link.ask({"do": "start", "settings": SETTINGS})
        given = {"id": 1, "shape": [len(data)], "dtype": "uint8", "part": 0}
        link.ask({"do": "put", "tensors": [given]}, [data])
        assert link.silence_seconds == pytest.approx(3.5 * ALIVE_SECONDS)
        assert time.monotonic() - began > link.silence_seconds
        _, (found,) = link.ask({"do": "get", "tensor": 1})
    assert found == data
