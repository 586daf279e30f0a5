"""What goes between the tuner (`ray_builders`), the process that speaks to Ray (`ray_link`) and Ray's nodes
(`ray_node`). All of it is pickled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tuner.measure.messages import BuilderSettings
from tuner.measure.runner import Candidate
from tuning_db.record import Config, Failure


@dataclass(frozen=True)
class NodeSettings:
    """What a node builds with. Its linker is its own; `machine` is what a target without a triple means."""

    builder: BuilderSettings
    machine: str
    plugins: tuple[str, ...]
    compile_seconds: float


@dataclass(frozen=True)
class LinkSettings:
    """`address`: of the cluster, as ray.init takes it."""

    address: str
    node: NodeSettings


@dataclass(frozen=True)
class Order:
    """Build a candidate; `elsewhere`: not on this machine, where something is measured meanwhile."""

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
    """An order's answer: the library, or the candidate's failure."""

    number: int
    library: bytes | Failure


@dataclass(frozen=True)
class Unbuilt:
    """No node can build it now, or it was on two nodes that were lost."""

    number: int


@dataclass(frozen=True)
class NodeUp:
    """A node builds from now on, up to `slots` candidates at a time. `here`: it is this machine."""

    node: str
    name: str
    slots: int
    here: bool


@dataclass(frozen=True)
class NodeDown:
    """A node does not build (any more), and why. `final`: nor will it."""

    node: str
    name: str
    why: str
    final: bool


@dataclass(frozen=True)
class Settled:
    """Every node that the cluster had when it was joined builds, or was said not to; or has had its time."""

    waiting: int


@dataclass(frozen=True)
class Alive:
    """Said every second while something is waited for."""


@dataclass(frozen=True)
class SearchSettings:
    """`libraries`: the versions of what searchers compute with, by name."""

    address: str
    plugins: tuple[str, ...]
    libraries: tuple[tuple[str, str | None], ...]


@dataclass(frozen=True)
class Ask:
    """Calls of a searcher, pickled, the last of which is answered; `before`: how many calls went before them. `nodes`:
    where it may be done, by id and name."""

    searcher: int
    before: int
    calls: bytes
    nodes: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Proposed:
    """The answer: configs, and what the searcher went on without; or why it cannot go on."""

    configs: tuple[Config, ...] = ()
    failures: Mapping[str, str] = field(default_factory=dict)
    failed: str | None = None


@dataclass(frozen=True)
class Behind:
    """In the place of an answer: the calls before were not made there. All of them are needed."""


@dataclass(frozen=True)
class Unanswered:
    """No node can search, and why the last one that was tried could not (None: there was none)."""

    why: str | None


@dataclass(frozen=True)
class SearchOn:
    """A node searches from now on; `instead`: another was lost."""

    name: str
    instead: bool


@dataclass(frozen=True)
class NotJoined:
    """The cluster cannot be joined; the last message."""

    why: str
