"""This is the board's agent, which listens and gives every connection its own process (`tune board serve`).

Start at `main` and `Agent`. The agent serves only paired hosts. One host measures at a time, because two would disturb
each other's measurements. The others wait in the turn queue (board_agent/turn_queue.py).
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from board_agent.backend import BACKENDS, Unusable
from board_agent.defaults import ALIVE_SECONDS, MOST_ALIVE_SECONDS, PORT, TURN_SECONDS, default_folder
from board_agent.facts import facts
from board_agent.keys import Hosts
from board_agent.pairing import Code, PairingError, pair
from board_agent.sandbox import end_with, private
from board_agent.scratch import sweep
from board_agent.session import serve_host
from board_agent.turn_queue import MOST, Full, TurnQueue
from board_agent.wire import Gone, WireError, send

_STRANGERS = 8  # connections, beyond those of paired hosts, that may be in the handshake: ten seconds at most each
_MOST_CHILDREN = MOST + _STRANGERS
_PAUSE = 0.5  # seconds before the next attempt where the system has no room for another connection
# TCP keepalive in units of `alive_seconds`: a host that is gone is noticed after five of them (ten seconds by default).
_IDLE, _INTERVAL, _PROBES = 2, 1, 3


class Agent:
    """A server that listens on an address. Port 0 chooses a free port; `port` is the actual one.

    Raises OSError if it cannot listen there, and PermissionError as `check_scratch` does.
    """

    def __init__(
        self,
        folder: Path,
        address: str,
        port: int,
        *,
        scratch: str,
        turn_seconds: float = TURN_SECONDS,
        alive_seconds: float = ALIVE_SECONDS,
    ) -> None:
        self._hosts, self._scratch = Hosts(folder / "hosts"), scratch
        self._turn_seconds, self._alive_seconds = turn_seconds, alive_seconds
        check_scratch(scratch)
        self._line = TurnQueue(folder / "line")
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            self._listener = socket.create_server((address, port), family=family, backlog=_MOST_CHILDREN)
        except OSError as error:
            why = (error.strerror or str(error)).partition(" (while")[0]
            raise OSError(f"{address}:{port}: cannot be listened on ({why}): --address and --port choose") from error
        self.port = int(self._listener.getsockname()[1])
        self._children: set[int] = set()
        sweep(scratch)

    def serve(self) -> None:
        """Serve connections until an interrupt."""
        self._listener.settimeout(1.0)
        try:
            while True:
                self._reap()
                try:
                    connection, peer = self._listener.accept()
                except socket.timeout:
                    continue
                except OSError as error:  # no memory or too many open files: there is room again when connections end
                    _complain("a connection could not be taken", error)
                    time.sleep(_PAUSE)
                    continue
                if len(self._children) >= _MOST_CHILDREN:
                    connection.close()
                    continue
                self._fork(connection, str(peer[0]))
        finally:
            for child in self._children:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGTERM)

    def _fork(self, connection: socket.socket, peer: str) -> None:
        agent = os.getpid()
        try:
            child = os.fork()
        except OSError as error:
            _complain(f"{peer}: no process for it", error)
            connection.close()
            return
        if child:
            self._children.add(child)
            connection.close()
            return
        status = 1
        try:
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
            end_with(agent, signal.SIGTERM)
            self._listener.close()
            private()
            self._child(connection, peer)
            status = 0
        except SystemExit:
            status = 0
        except BaseException as error:
            print(f"{peer}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(status)

    def _child(self, connection: socket.socket, peer: str) -> None:
        try:
            name, host = self._hosts.accept(connection)
        except OSError as error:
            print(f"{peer}: refused: {error}", file=sys.stderr, flush=True)
            return
        host.settimeout(None)
        watch(host, self._alive_seconds)
        try:
            entry = self._line.enter(name)
        except Full as full:
            with contextlib.suppress(Gone, WireError):
                send(host, {"full": str(full)})
            return
        print(f"{peer}: {name} came", file=sys.stderr, flush=True)
        with entry:
            serve_host(host, self._scratch, entry, turn_seconds=self._turn_seconds, alive_seconds=self._alive_seconds)
        print(f"{peer}: {name} left", file=sys.stderr, flush=True)

    def _reap(self) -> None:
        for child in list(self._children):
            done, _ = os.waitpid(child, os.WNOHANG)
            if done:
                self._children.discard(child)


def _complain(what: str, error: OSError) -> None:
    print(f"{what}: {error.strerror}", file=sys.stderr, flush=True)


def check_scratch(folder: str) -> None:
    """Raise PermissionError if the unprivileged user that candidates run as cannot reach a folder."""
    if os.geteuid() != 0:
        return
    for place in (Path(folder).resolve(), *Path(folder).resolve().parents):
        if not place.stat().st_mode & 0o001:
            raise PermissionError(
                f"{place}: candidates run as nobody, who cannot enter it: set TMPDIR to another folder"
            )


def watch(connection: Any, alive_seconds: float = ALIVE_SECONDS) -> None:
    """Make the system notice within five times `alive_seconds` that the peer is gone.

    This works while the connection is idle as well as while data is being sent.
    """
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, max(1, round(_IDLE * alive_seconds))),  # whole seconds
        (socket.TCP_KEEPINTVL, max(1, round(_INTERVAL * alive_seconds))),
        (socket.TCP_KEEPCNT, _PROBES),
        (socket.TCP_USER_TIMEOUT, round(1000 * alive_seconds * (_IDLE + _INTERVAL * _PROBES))),
    ):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


def main(arguments: list[str] | None = None) -> int:
    """Serve hosts until interrupted, or print this machine's facts. Return the exit status."""
    parser = argparse.ArgumentParser(prog="tune board serve", description=__doc__.splitlines()[0])
    parser.add_argument("--address", default="127.0.0.1", help="to listen on (default: this machine alone can connect)")
    parser.add_argument("--port", type=int, default=PORT, help=f"0: any (default: {PORT})")
    parser.add_argument("--pair", metavar="CODE", help="become known to a host first, by its `tune board pair`")
    parser.add_argument("--facts", action="store_true", help="print what this machine is, for `tune bundle make`")
    parser.add_argument("--folder", type=Path, default=default_folder(), help="of keys (default: %(default)s)")
    parser.add_argument(
        "--turn",
        type=float,
        default=TURN_SECONDS,
        metavar="SECONDS",
        help="that a host measures while others wait (default: %(default)g)",
    )
    parser.add_argument(
        "--alive",
        type=float,
        default=ALIVE_SECONDS,
        metavar="SECONDS",
        help="between signs of life: a host takes the board for gone where some do not come (default: %(default)g)",
    )
    given = parser.parse_args(arguments)
    if not 0 < given.turn < float("inf"):
        parser.error(f"--turn must be a positive number of seconds, not {given.turn:g}")
    if not 0 < given.alive <= MOST_ALIVE_SECONDS:
        parser.error(
            f"--alive must be a positive number of seconds, {MOST_ALIVE_SECONDS:g} at most, not {given.alive:g}"
        )
    if given.facts:
        print(json.dumps({**facts(), **{kind: _devices_of(kind) for kind in ("opencl", "cuda")}}))
        return 0
    try:
        # The agent is made first, so that a port which is in use does not use up the pairing code.
        agent = Agent(
            given.folder,
            given.address,
            given.port,
            scratch=tempfile.gettempdir(),
            turn_seconds=given.turn,
            alive_seconds=given.alive,
        )
        if given.pair is not None:
            print(f"paired with {pair(Code.parse(given.pair), Hosts(given.folder / 'hosts'))}", flush=True)
    except (PairingError, OSError) as error:
        print(f"tune: {error}", file=sys.stderr)
        return 2
    print(f"listening on {given.address}:{agent.port}", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        agent.serve()
    return 0


def _devices_of(kind: str) -> list[dict[str, Any]]:
    """Describe this machine's devices of a kind. The list is empty where no usable driver is installed."""
    try:
        found: list[dict[str, Any]] = importlib.import_module(BACKENDS[kind, "launches"]).describe_all()
    except (ImportError, Unusable):
        return []
    return found


def run() -> None:
    """Run `main` as a program and exit with its status."""
    sys.exit(main())


if __name__ == "__main__":
    run()
