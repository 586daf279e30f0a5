"""This process speaks to Ray: it knows the cluster's nodes, hands orders out to them and collects what they built.
Start at `main`.

It is a process of its own because Ray's core writes to standard error, starts threads, waits for minutes where nobody
answers, and ends the process that it is in when the node that it talks to is lost.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Literal

from tuner.measure.failures import describe, last_meaningful_line
from tuner.measure.ray.messages import (
    Alive,
    Built,
    Bye,
    LinkSettings,
    NodeDown,
    NodeUp,
    NotJoined,
    Order,
    Settled,
    Unbuilt,
    Withdraw,
)
from tuner.measure.ray.node import NodeBuilder, facts

_LOSSES = 2  # nodes that may be lost over one candidate before it is sent to no other
_LOOK_SECONDS = 2.0  # between looks at which nodes there are and whether they answer
_PING_SECONDS = 15.0
_START_SECONDS = 180.0
_SETTLE_SECONDS = (10.0, 30.0)  # the longest wait for a node: where others are ready, or where none is
_FETCH_SECONDS = 10.0
_GRACE_SECONDS = 15.0
_ALIVE_SECONDS = 1.0
_PAUSES = (2.0, 5.0, 10.0, 20.0, 60.0)  # before a lost node is tried again, by its faults since a good build


def main(connection: Connection, settings: LinkSettings) -> None:
    """Join the cluster and serve the tuner until it says Bye, or is gone (EOFError)."""
    with joined(connection, settings.address) as ray:
        if ray is not None:
            Cluster(ray, connection, settings).serve()


@contextmanager
def joined(connection: Connection, address: str) -> Iterator[Any]:
    """Join the cluster and yield the module `ray`. Yield None where the cluster cannot be joined, after telling the
    tuner."""
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.chdir("/")  # Ray's workers look for modules in a folder of the same path as this process's
    import ray

    try:
        ray.init(address, log_to_driver=False, logging_level=logging.CRITICAL)
    except Exception as error:
        connection.send(NotJoined(" ".join(str(error).split())))
        yield None
        return
    try:
        yield ray
    finally:
        ray.shutdown()


@dataclass
class _Node:
    """A node as the link knows it. `state` is "new" until its actor has answered everything that precedes the first
    candidate."""

    id: str
    name: str
    slots: int
    actor: Any = None
    state: Literal["new", "ready", "lost", "refused"] = "new"
    here: bool = False
    faults: int = 0
    retry_at: float = 0.0


@dataclass
class _Asked:
    """A call of a node's actor that is not answered yet. `order` belongs to a build that is still wanted."""

    node: _Node
    what: Literal["facts", "start", "ping", "build"]
    deadline: float
    order: Order | None = None


class Cluster:
    """Keeps the nodes that have CPUs, one actor on each, and the orders that wait or are with a node."""

    def __init__(self, ray: Any, connection: Connection, settings: LinkSettings) -> None:
        self._ray, self._connection, self._settings = ray, connection, settings.node
        self._facts = facts()
        self._nodes: dict[str, _Node] = {}
        self._asked: dict[Any, _Asked] = {}
        self._orders: deque[Order] = deque()
        self._losses: Counter[int] = Counter()
        self._joined = time.monotonic()
        self._settled = False
        self._looked = self._told = float("-inf")

    def serve(self) -> None:
        """Serve the tuner until it says Bye."""
        while self._hear():
            self._look()
            self._hand_out()
            self._collect()
            self._tell()
        for node in self._nodes.values():
            self._dismiss(node)

    def _hear(self) -> bool:
        """Take what the tuner says. Return False when it says Bye."""
        seconds = 0.0 if self._asked else _ALIVE_SECONDS / 2
        while self._connection.poll(seconds):
            message = self._connection.recv()
            if isinstance(message, Bye):
                return False
            if isinstance(message, Order):
                self._orders.append(message)
            elif isinstance(message, Withdraw):
                self._orders.clear()
                for asked in self._asked.values():
                    asked.order = None
            seconds = 0.0
        return True

    # The nodes

    def _look(self) -> None:
        now = time.monotonic()
        if now - self._looked < _LOOK_SECONDS:
            return
        self._looked = now
        there = {n["NodeID"]: n for n in self._ray.nodes() if n["Alive"] and n["Resources"].get("CPU", 0) >= 1}
        for node in [n for n in self._nodes.values() if n.id not in there]:
            self._lose(node, "it left the cluster")
            del self._nodes[node.id]
        for key, found in there.items():
            if key not in self._nodes:
                name = f"{found['NodeName']}/{key[:6]}"
                self._nodes[key] = _Node(key, name, int(found["Resources"]["CPU"]))
                self._employ(self._nodes[key])
        pinged = {id(asked.node) for asked in self._asked.values() if asked.what == "ping"}
        for node in self._nodes.values():
            if node.state == "lost" and node.retry_at <= now:
                self._employ(node)
            elif node.state == "ready" and id(node) not in pinged:
                self._ask(node, "ping", node.actor.ping.remote(), seconds=_PING_SECONDS)

    def _employ(self, node: _Node) -> None:
        """Start an actor on a node. It waits for the node's CPUs where another run has them."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        node.state = "new"
        where = NodeAffinitySchedulingStrategy(node.id, soft=False)
        node.actor = (
            self._ray.remote(NodeBuilder)
            .options(num_cpus=node.slots, max_restarts=0, max_concurrency=node.slots + 2, scheduling_strategy=where)
            .remote()
        )
        self._ask(node, "facts", node.actor.facts.remote(), seconds=float("inf"))

    def _ask(self, node: _Node, what: Any, call: Any, *, seconds: float, order: Order | None = None) -> None:
        self._asked[call] = _Asked(node, what, time.monotonic() + seconds, order)

    def _lose(self, node: _Node, why: str) -> None:
        """Take a node for lost: what it had is built elsewhere, and the node is tried again later."""
        if node.state in ("lost", "refused"):
            return
        for call in [call for call, asked in self._asked.items() if asked.node is node]:
            order = self._asked.pop(call).order
            if order is None:
                continue
            self._losses[order.number] += 1
            if self._losses[order.number] < _LOSSES:
                self._orders.appendleft(order)
            else:
                self._connection.send(Unbuilt(order.number))
        self._dismiss(node)
        node.state = "lost"
        node.retry_at = time.monotonic() + _PAUSES[min(node.faults, len(_PAUSES) - 1)]
        node.faults += 1
        self._connection.send(NodeDown(node.id, node.name, why, final=False))

    def _refuse(self, node: _Node, why: str) -> None:
        self._dismiss(node)
        node.state = "refused"
        self._connection.send(NodeDown(node.id, node.name, why, final=True))

    def _dismiss(self, node: _Node) -> None:
        if node.actor is not None:
            self._ray.kill(node.actor)
            node.actor = None

    # The orders

    def _hand_out(self) -> None:
        while self._orders:
            order = self._orders[0]
            able = [n for n in self._nodes.values() if n.state == "ready" and not (order.elsewhere and n.here)]
            node = max(able, key=self._free, default=None)
            if node is not None and self._free(node) == 0:
                return
            self._orders.popleft()
            if node is None:
                self._connection.send(Unbuilt(order.number))
                continue
            # The node itself ends a build at its deadline, and gives some builds a second chance.
            seconds = 2 * self._settings.compile_seconds + _GRACE_SECONDS
            self._ask(node, "build", node.actor.build.remote(order.candidate), seconds=seconds, order=order)

    def _free(self, node: _Node) -> int:
        return node.slots - sum(asked.node is node and asked.what == "build" for asked in self._asked.values())

    def _collect(self) -> None:
        if not self._asked:
            return
        done, _ = self._ray.wait(list(self._asked), num_returns=1, timeout=0.05)
        if done:  # take all answers: one that came in time might else be found too late
            done, _ = self._ray.wait(list(self._asked), num_returns=len(self._asked), timeout=0)
        for call in done:
            if call not in self._asked:  # it was lost with its node, just now
                continue
            asked = self._asked.pop(call)
            try:
                answer = self._ray.get(call, timeout=_FETCH_SECONDS)
            except self._ray.exceptions.RayError as error:
                self._asked[call] = asked  # `_lose` loses it with the node
                self._lose(asked.node, reason(error))
                continue
            self._take(asked, answer)
        now = time.monotonic()
        for asked in [asked for asked in self._asked.values() if asked.deadline <= now]:
            self._lose(asked.node, "it does not answer")

    def _take(self, asked: _Asked, answer: Any) -> None:
        node = asked.node
        if asked.what == "facts":
            problem = _mismatch(self._facts, answer)
            if problem is not None:
                self._refuse(node, problem)
                return
            node.here = answer["boot"] == self._facts["boot"]
            self._ask(node, "start", node.actor.start.remote(self._settings, node.slots), seconds=_START_SECONDS)
        elif asked.what == "start" and answer is not None:
            self._refuse(node, answer)
        elif asked.what == "start":
            node.state = "ready"
            self._connection.send(NodeUp(node.id, node.name, node.slots, node.here))
        elif asked.what == "build":
            node.faults = 0
            if asked.order is not None:
                self._connection.send(Built(asked.order.number, answer))

    def _tell(self) -> None:
        now = time.monotonic()
        busy = self._orders or not self._settled or any(asked.order is not None for asked in self._asked.values())
        if busy and now - self._told >= _ALIVE_SECONDS:  # else nobody listens
            self._told = now
            self._connection.send(Alive())
        waiting = sum(node.state == "new" for node in self._nodes.values())
        with_others, alone = _SETTLE_SECONDS
        patience = with_others if any(node.state == "ready" for node in self._nodes.values()) else alone
        if not self._settled and (not waiting or now - self._joined > patience):
            self._settled = True
            self._connection.send(Settled(waiting))


def reason(error: Exception) -> str:
    """Return one line for what Ray says in many, in colours."""
    line = last_meaningful_line(str(error))
    return line if "Error" in line else f"{type(error).__name__}: {line}" if line else describe(error)


def _mismatch(ours: dict[str, str], theirs: dict[str, str]) -> str | None:
    """Return why a node must not build for this machine, or None where it may."""
    for what in ("edgetune", "tvm"):
        if theirs.get(what) != ours[what]:
            return f"it has {what} {theirs.get(what)}, and this machine {ours[what]}"
    if theirs.get("sources") != ours["sources"]:
        return "it has other sources of edgetune than this machine, under the same version"
    if ours["access"] == "token" and theirs.get("access") != "token":
        return "it runs what anybody sends who reaches it: start Ray there with RAY_AUTH_MODE=token"
    return None
