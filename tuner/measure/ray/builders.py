"""`RayBuilders` builds candidates on the machines of a Ray cluster, and on this one where none of them can. Start
there; `check_ray` tells early what cannot work."""

from __future__ import annotations

import contextlib
import importlib.util
import platform
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from tuner.devices import Device, usable_cpus
from tuner.errors import BadInput
from tuner.measure.failures import last_meaningful_line
from tuner.measure.messages import BuilderSettings, BuildJob
from tuner.measure.ray.messages import (
    Built,
    Bye,
    LinkSettings,
    NodeDown,
    NodeSettings,
    NodeUp,
    NotJoined,
    Order,
    Settled,
    Unbuilt,
    Withdraw,
)
from tuner.measure.runner import Closing, MeasureOptions
from tuner.measure.workers.build_pool import BuilderPool, BuildStopped, Done
from tuner.measure.workers.worker import ProcessServer, Worker
from tuning_db.record import Failure

_ENTRY = "tuner.measure.ray.link:main"
_REACH_SECONDS = 5.0
_JOIN_SECONDS = 30.0  # Ray itself would try for minutes
_SILENCE_SECONDS = 20.0  # the link says every second that it is alive, while it is waited for
_REJOIN_SECONDS = 30.0
_LEAVE_SECONDS = 5.0
_STOP_SECONDS = 0.1
_NOT_JOINED = (
    f"the cluster was not joined within {_JOIN_SECONDS:.0f} s: this machine has to be a node of it "
    "(ray start --address HOST:PORT --num-cpus 0)"
)
# Short explanations of what Ray says in many lines.
_EXPLAINED = {
    "InvalidAuthToken": "the cluster has another token: set RAY_AUTH_TOKEN, or RAY_AUTH_TOKEN_PATH, to its own",
    "no authentication token was found": (
        "there is no token: set RAY_AUTH_TOKEN, or RAY_AUTH_TOKEN_PATH, to the cluster's (or, where all of its network "
        "is to be trusted, RAY_AUTH_MODE=disabled)"
    ),
}

Say = Callable[[str], object]


def check_ray(address: str, device: Device) -> None:
    """Raise BadInput where candidates for the device cannot be built on a Ray cluster at that address."""
    if not device.kind.is_cpu and not device.kind.is_remote:
        raise BadInput(f"device {device.name}: its driver compiles its kernels, on this machine: leave out --ray")
    host, _, port = address.rpartition(":")
    if address != "auto" and (not host or "/" in host or not port.isdecimal() or int(port) > 65535):
        raise BadInput(f"--ray {address}: give HOST:PORT of the cluster's head, or auto for the one of this machine")
    if importlib.util.find_spec("ray") is None:
        raise BadInput("--ray needs Ray: pip install 'edgetune[fleet]'")
    if address == "auto":
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _REACH_SECONDS).close()
    except OSError as error:
        raise BadInput(f"--ray {address}: no cluster can be reached there: {error.strerror or error}") from error


class RayBuilders(Closing):
    """Builds (see `build_pool.Builders`) on every node of a cluster that has CPUs; what no node can build, `local`
    builds.

    A node that is lost costs the time of the builds that it had. It is used again when it is back, and so are nodes
    that join. `here` says whether a node is on this machine. `slots` is the number of candidates that the nodes build
    at a time.
    """

    def __init__(
        self,
        server: ProcessServer,
        local: BuilderPool,
        settings: BuilderSettings,
        *,
        options: MeasureOptions,
        say: Say,
        alone: AbstractContextManager[object],
    ) -> None:
        """Join the cluster. `say` is called with a line on what becomes of nodes. `local` builds only under the lock
        `alone`.

        Raises BadInput where there is no cluster, or none of its nodes can build for this machine.
        """
        assert options.ray is not None
        self._server, self._local, self._say, self._alone = server, local, say, alone
        node = NodeSettings(settings, platform.machine(), options.plugins, options.compile_seconds)
        self._settings = LinkSettings(options.ray, node)
        self._nodes: dict[str, NodeUp] = {}
        self._told: dict[str, str] = {}  # what was said last of each node
        self._orders = 0
        self._elsewhere = False
        self._settled = self._lost = False
        self._link: Worker | None = None
        self._rejoin_at = 0.0
        self._join()
        self._settle()

    @property
    def here(self) -> bool:
        return any(node.here for node in self._nodes.values())

    @property
    def elsewhere(self) -> tuple[tuple[str, str], ...]:
        """Return the nodes on other machines, by id and name."""
        return tuple((node.node, node.name) for node in list(self._nodes.values()) if not node.here)

    @property
    def slots(self) -> int:
        return sum(node.slots for node in self._nodes.values())

    def leave_this_machine(self) -> bool:
        """Build on other machines alone from now on, so that this one can measure meanwhile. Return False, without
        doing so, where a node is on this machine."""
        self._hear_all()
        self._elsewhere = not self.here
        return self._elsewhere

    def build(
        self, jobs: Sequence[BuildJob], done: Done | None = None, stop: threading.Event | None = None
    ) -> list[Failure | None]:
        """See `Builders.build`. Raises OSError where a library cannot be written."""
        results: dict[int, Failure | None] = {}

        def finish(place: int, failure: Failure | None) -> None:
            results[place] = failure
            if done is not None:
                done(place, failure)

        left = self._build_there(jobs, finish, stop)
        if left:
            with self._alone:
                self._local.build([jobs[i] for i in left], lambda i, failure: finish(left[i], failure), stop)
        return [results[i] for i in range(len(jobs))]

    def _build_there(self, jobs: Sequence[BuildJob], finish: Done, stop: threading.Event | None) -> list[int]:
        """Build on the nodes, and return the indices of the jobs that no node has built."""
        self._hear_all()
        if self._link is None and time.monotonic() >= self._rejoin_at:
            self._join()
        if self._link is None or not self._nodes:
            return list(range(len(jobs)))
        places = {self._orders + i: i for i in range(len(jobs))}
        self._orders += len(jobs)
        unbuilt: list[int] = []
        try:
            self._order(jobs, places)
            while places:
                message = self._hear(_STOP_SECONDS)
                if stop is not None and stop.is_set():
                    raise BuildStopped
                if self._link is None:
                    return sorted([*unbuilt, *places.values()])
                if isinstance(message, Unbuilt) and message.number in places:
                    unbuilt.append(places.pop(message.number))
                elif isinstance(message, Built) and message.number in places:
                    self._keep(jobs, places.pop(message.number), message.library, finish)
        finally:
            if places and self._link is not None:
                self._link.send(Withdraw())
        return sorted(unbuilt)

    def _order(self, jobs: Sequence[BuildJob], places: dict[int, int]) -> None:
        assert self._link is not None
        for number, place in places.items():
            candidate = jobs[place].candidate
            assert candidate is not None
            self._link.send(Order(number, candidate, self._elsewhere))

    def _keep(self, jobs: Sequence[BuildJob], place: int, library: bytes | Failure, finish: Done) -> None:
        if isinstance(library, Failure):
            finish(place, library)
            return
        Path(jobs[place].library).write_bytes(library)
        finish(place, None)

    # The link

    def _join(self) -> None:
        self._link = self._server.spawn("tune-ray", _ENTRY, self._settings, cpus=usable_cpus())
        self._heard = time.monotonic()
        self._joining = True

    def _settle(self) -> None:
        """Wait until the link says that every node builds, cannot build, or has had its time. Raises BadInput where
        none will build."""
        while not self._settled:
            self._hear(_STOP_SECONDS)
            if self._link is None:
                raise BadInput(f"--ray {self._settings.address}: {self._problem}")
        if self._nodes or self._waiting:
            for text in self._told.values():
                self._say(f"Ray: {text}")
        if self._nodes:
            names = ", ".join(node.name for node in self._nodes.values())
            self._say(f"Ray: building on {names} ({self.slots} at a time)")
        elif self._told and not self._waiting:
            raise BadInput(f"--ray {self._settings.address}: {'; '.join(self._told.values())}")
        elif not self._waiting:
            raise BadInput(f"--ray {self._settings.address}: no node of the cluster has a CPU: add one with ray start")
        else:
            self._say("Ray: no node is free yet; building here until one is")

    def _hear_all(self) -> None:
        """Take all messages that have arrived from the link."""
        while self._link is not None and self._link.connection.poll():
            self._hear(0.0)
        self._heard = time.monotonic()  # the time in which nobody listened is no silence

    def _hear(self, seconds: float) -> Any:
        """Return the link's next message within `seconds`, or None. What it says of nodes is kept. A link that has
        ended or is silent is given up."""
        assert self._link is not None
        try:
            message = self._link.connection.recv() if self._link.connection.poll(seconds) else None
        except (EOFError, OSError):
            self._give_up(None)
            return None
        except BaseException:  # an interrupt may have left half a message
            self._drop()
            raise
        if isinstance(message, NotJoined):
            self._give_up(message.why)
            return None
        silent = time.monotonic() - self._heard
        if message is not None:
            self._heard, self._joining = time.monotonic(), False
        elif silent > (_JOIN_SECONDS if self._joining else _SILENCE_SECONDS):
            self._give_up(_NOT_JOINED if self._joining else "it says nothing")
        self._note(message)
        return message

    def _note(self, message: Any) -> None:
        """Keep and report what a message says of the nodes."""
        if isinstance(message, NodeUp):
            self._nodes[message.node] = message
            self._told.pop(message.node, None)
            self._lost = False
            if self._settled:
                self._say(f"Ray: building on {message.name} too ({message.slots} at a time)")
        elif isinstance(message, NodeDown):
            was_up = self._nodes.pop(message.node, None) is not None
            text = f"node {message.name} {'was lost' if was_up else 'cannot build'}: {message.why}"
            if self._settled and self._told.get(message.node) != text:
                rest = "" if self._nodes or not was_up else "; building here until one is back"
                self._say(f"Ray: {text}{rest}")
            self._told[message.node] = text
        elif isinstance(message, Settled):
            self._settled, self._waiting = True, message.waiting

    def _give_up(self, why: str | None) -> None:
        """Take the cluster for lost: build here, and join it again later. `why` is None where the link ended."""
        said, how = self._drop()
        known = (explanation for sign, explanation in _EXPLAINED.items() if sign in f"{why} {said}")
        self._problem = next(known, last_meaningful_line(why or how))
        self._nodes.clear()
        self._rejoin_at = time.monotonic() + _REJOIN_SECONDS
        if self._settled and not self._lost:
            self._say(f"Ray: the cluster was lost ({self._problem}): building here until it is back")
        self._lost = True

    def _drop(self) -> tuple[str, str]:
        """End the link. Return what it wrote last, and how it ended."""
        if self._link is None:
            return "", ""
        link, self._link = self._link, None
        return link.said(), link.stop()

    def close(self) -> None:
        """Leave the cluster, which ends what it runs for this machine."""
        if self._link is None:
            return
        self._link.send(Bye())
        end = time.monotonic() + _LEAVE_SECONDS
        with contextlib.suppress(EOFError, OSError):
            while self._link.connection.poll(max(0.0, end - time.monotonic())):
                self._link.connection.recv()
        self._drop()
