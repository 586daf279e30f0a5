"""This process speaks to Ray for searchers (`link` says why it is a process of its own). It runs `NodeSearchers` on a
node. Start at `main`.

All searchers of a run live on one node, since a session asks one of them at a time.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

from tuner.errors import BadInput
from tuner.measure.failures import last_meaningful_line
from tuner.measure.plugins import import_plugins
from tuner.measure.ray.link import joined, reason
from tuner.measure.ray.messages import Alive, Ask, Behind, Bye, Proposed, SearchOn, SearchSettings, Unanswered
from tuner.measure.ray.search import libraries, told
from tuner.search import Searcher

_START_SECONDS = 60.0
_PING_SECONDS = 15.0  # a node that says nothing for so long is lost
_LOOK_SECONDS = 1.0  # between looks whether the node answers
_RETRY_SECONDS = 60.0  # before a lost node is tried again


def main(connection: Connection, settings: SearchSettings) -> None:
    """Join the cluster and answer the tuner until it says Bye, or is gone (EOFError)."""
    with joined(connection, settings.address) as ray:
        if ray is None:
            return
        place = _SearcherNode(ray, connection, settings)
        while not isinstance(message := connection.recv(), Bye):
            connection.send(place.answer(message))
        place.leave()


class NodeSearchers:
    """Keeps searchers on a node by their numbers, each with the number of calls that were made of it."""

    def __init__(self) -> None:
        self._searchers: dict[int, tuple[Searcher, int]] = {}

    def start(self, settings: SearchSettings) -> str | None:
        """Import the plugins. Return a line where this node cannot search, else None."""
        for (name, ours), (_, theirs) in zip(libraries(), settings.libraries, strict=True):
            if ours != theirs:
                return f"it has {name} {ours}, and this machine {theirs}"
        try:
            import_plugins(settings.plugins)
        except BadInput as problem:
            return str(problem)
        return None

    def answer(self, number: int, before: int, calls: bytes) -> Proposed | Behind:
        searcher, made = self._searchers.get(number, (None, 0))
        if before == 0:
            searcher, made = None, 0
        if made != before:
            return Behind()
        more = pickle.loads(calls)
        found, answer = told(searcher, more)
        self._searchers[number] = found, made + len(more)
        return answer

    def ping(self) -> None:
        """Answer, which shows that the node is alive."""


class _Lost(Exception):
    """The node does not answer, its process died, or it cannot search (`for_good`); the text says which."""

    def __init__(self, text: str, for_good: bool = False) -> None:
        super().__init__(text)
        self.for_good = for_good


class _SearcherNode:
    """The node where searchers are, as long as it answers."""

    def __init__(self, ray: Any, connection: Connection, settings: SearchSettings) -> None:
        self._ray, self._connection, self._settings = ray, connection, settings
        self._actor: Any = None
        self._node = ""
        self._unfit: dict[str, tuple[float, str]] = {}  # by id: until when a node is not tried, and why

    def answer(self, asked: Ask) -> Proposed | Behind | Unanswered:
        """Return the answer of the node that has the searchers, or of the next one that works."""
        lost = False
        for node, name in self._in_order(asked.nodes):
            try:
                if node != self._node:
                    self._move(node, name, instead=lost)
                answer: Proposed | Behind = self._get(
                    self._actor.answer.remote(asked.searcher, asked.before, asked.calls)
                )
            except _Lost as error:
                self.leave()
                lost = True
                until = float("inf") if error.for_good else time.monotonic() + _RETRY_SECONDS
                self._unfit[node] = until, f"{name}: {error}"
                continue
            except self._ray.exceptions.RayTaskError as error:
                return Unanswered(f"{name}: {last_meaningful_line(str(error))}")
            return answer
        whys = [why for _, why in self._unfit.values()]
        return Unanswered(whys[-1] if whys else None)

    def _in_order(self, nodes: tuple[tuple[str, str], ...]) -> Iterator[tuple[str, str]]:
        """Yield the nodes that may be tried, the one that has the searchers first."""
        for node, name in sorted(nodes, key=lambda n: n[0] != self._node):
            until, _ = self._unfit.get(node, (0.0, ""))
            if until <= time.monotonic():
                yield node, name

    def _move(self, node: str, name: str, instead: bool) -> None:
        """Start the searchers' actor on a node. Raises _Lost where that cannot be done."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        instead = instead or self._actor is not None
        self.leave()
        where = NodeAffinitySchedulingStrategy(node, soft=False)
        # Builders have the node's CPUs; a search is short beside what they do.
        options = {"num_cpus": 0, "max_restarts": 0, "max_concurrency": 2, "scheduling_strategy": where}
        self._actor, self._node = self._ray.remote(NodeSearchers).options(**options).remote(), node
        problem = self._get(self._actor.start.remote(self._settings), started=False)
        if problem is not None:
            raise _Lost(problem, for_good=True)
        self._connection.send(SearchOn(name, instead))

    def _get(self, call: Any, started: bool = True) -> Any:
        """Return what a call gives. Meanwhile tell the tuner that this process is alive. Raises _Lost where the node
        does not answer."""
        heard, ping = time.monotonic(), None
        limit = _PING_SECONDS if started else _START_SECONDS
        while not self._ray.wait([call], timeout=_LOOK_SECONDS)[0]:
            self._connection.send(Alive())
            ping = ping or self._actor.ping.remote()
            if self._ray.wait([ping], timeout=0)[0]:
                heard, ping = time.monotonic(), None
            if time.monotonic() - heard > limit:
                raise _Lost("it does not answer")
        try:
            return self._ray.get(call)
        except self._ray.exceptions.RayTaskError:
            raise
        except self._ray.exceptions.RayError as error:
            raise _Lost(reason(error)) from error

    def leave(self) -> None:
        if self._actor is not None:
            self._ray.kill(self._actor)
        self._actor, self._node = None, ""
