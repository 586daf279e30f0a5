"""Defines the messages between the tuner (`builders`, `search`), the processes that speak to Ray (`link`,
`search_link`) and Ray's nodes (`node`). All of them are pickled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tuner.measure.messages import BuilderSettings
from tuner.measure.runner import Candidate
from tuning_db.record import Config, Failure


@dataclass(frozen=True)
class NodeSettings:
    """Settings that a node builds with. The linker is the node's own; `machine` is what a target without a triple
    means."""

    builder: BuilderSettings
    machine: str
    plugins: tuple[str, ...]
    compile_seconds: float


@dataclass(frozen=True)
class LinkSettings:
    """Settings that the link is started with. `address` is the cluster's, as ray.init takes it."""

    address: str
    node: NodeSettings


@dataclass(frozen=True)
class Order:
    """Build a candidate. With `elsewhere`, do not build it on this machine, where something is measured meanwhile."""

    number: int
    candidate: Candidate
    elsewhere: bool


@dataclass(frozen=True)
class Withdraw:
    """Forget all orders: nobody waits for them any more."""


@dataclass(frozen=True)
class Bye:
    """Leave the cluster, and end."""


@dataclass(frozen=True)
class Built:
    """Answers an Order with the library, or with the candidate's failure."""

    number: int
    library: bytes | Failure


@dataclass(frozen=True)
class Unbuilt:
    """Says of an Order that no node can build it now, or that it was on two nodes that were lost."""

    number: int


@dataclass(frozen=True)
class NodeUp:
    """Says that a node builds from now on, up to `slots` candidates at a time. `here` says that the node is on this
    machine."""

    node: str
    name: str
    slots: int
    here: bool


@dataclass(frozen=True)
class NodeDown:
    """Says that a node does not build (any more), and why. `final` says that it will not build later either."""

    node: str
    name: str
    why: str
    final: bool


@dataclass(frozen=True)
class Settled:
    """Says of every node that the cluster had when it was joined that it builds, that it cannot build, or that it has
    had its time. `waiting` is the number of nodes that are not ready yet."""

    waiting: int


@dataclass(frozen=True)
class Alive:
    """Says every second, while something is waited for, that the process is alive."""


@dataclass(frozen=True)
class SearchSettings:
    """Settings that the search link is started with. `libraries` has the versions of what searchers compute with, by
    name."""

    address: str
    plugins: tuple[str, ...]
    libraries: tuple[tuple[str, str | None], ...]


@dataclass(frozen=True)
class Ask:
    """Asks for pickled calls of a searcher, the last of which is answered. `before` is the number of calls that precede
    them. `nodes` are where the calls may be made, by id and name."""

    searcher: int
    before: int
    calls: bytes
    nodes: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Proposed:
    """Answers an Ask with configs and with what the searcher went on without (`failures`), or with why it cannot go on
    (`failed`)."""

    configs: tuple[Config, ...] = ()
    failures: Mapping[str, str] = field(default_factory=dict)
    failed: str | None = None


@dataclass(frozen=True)
class Behind:
    """Sent in place of an answer: the calls that precede these were not made on this node, and all of them
    are needed."""


@dataclass(frozen=True)
class Unanswered:
    """Says that no node can search, and why the last one that was tried could not (None: there was none)."""

    why: str | None


@dataclass(frozen=True)
class SearchOn:
    """Says that a node searches from now on. `instead` says that another one was lost."""

    name: str
    instead: bool


@dataclass(frozen=True)
class NotJoined:
    """Says, as the last message, that the cluster cannot be joined."""

    why: str
