"""Runs searchers on the machines of a Ray cluster, so that fitting cost models and proposing take no core of the
machine that measures. Start at `RaySearchers`.

A searcher's state follows from its calls (tuner.search.base: the same seed and the same observations give the same
proposals), so every call is kept. Where a node is lost, the searcher is made anew on another node, or here where there
is none, and all its calls are made again.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import time
from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle

from templates.space import SearchSpace
from tuner.devices import usable_cpus
from tuner.errors import SearchFailed
from tuner.measure.failures import last_meaningful_line
from tuner.measure.ray.messages import Ask, Behind, Bye, NotJoined, Proposed, SearchOn, SearchSettings, Unanswered
from tuner.measure.runner import Closing
from tuner.measure.workers.worker import ProcessServer, Worker
from tuner.search import Experience, Searcher, make_searcher
from tuning_db.record import Config, Trial

_ENTRY = "tuner.measure.ray.search_link:main"
_JOIN_SECONDS = 30.0  # Ray itself would try for minutes
_SILENCE_SECONDS = 20.0  # the link says every second that it is alive, while it is waited for
_LEAVE_SECONDS = 5.0
# Libraries that searchers compute with: other versions may propose something else.
_LIBRARIES = ("numpy", "xgboost-cpu", "xgboost", "torch", "stable-baselines3")

# The name of a method of Searcher, or "make", and its arguments.
Call = tuple[str, tuple[Any, ...]]
Nodes = Callable[[], tuple[tuple[str, str], ...]]


def libraries() -> tuple[tuple[str, str | None], ...]:
    """Return the versions of the libraries that searchers compute with, None for one that is not installed."""
    return tuple((name, _version(name)) for name in _LIBRARIES)


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def told(searcher: Searcher | None, calls: Sequence[Call]) -> tuple[Searcher, Proposed]:
    """Make the calls. Return the searcher (a new one, where the first call makes it) and what the last
    `propose` gave."""
    answer = Proposed()
    for method, arguments in calls:
        if method == "make":
            searcher = make_searcher(*arguments)
        elif method == "propose":
            assert searcher is not None
            try:
                configs = searcher.propose(*arguments)
            except SearchFailed as error:
                answer = Proposed(failed=str(error))
            else:
                answer = Proposed(tuple(configs), dict(searcher.failures))
        else:
            getattr(searcher, method)(*arguments)
    assert searcher is not None  # the first call makes it
    return searcher, answer


class RaySearcher:
    """A searcher (see `tuner.search.Searcher`) that computes on another machine, until no node is left."""

    def __init__(self, searchers: RaySearchers, number: int, made: Call) -> None:
        self._searchers, self._number = searchers, number
        self._calls: list[Call] = [made]
        self._there = 0  # calls that were made on the node
        self._here: Searcher | None = None
        self.failures: dict[str, str] = {}

    def observe(self, trials: Sequence[Trial]) -> None:
        self._call("observe", tuple(trials))

    def suggest(self, configs: Sequence[Config]) -> None:
        self._call("suggest", tuple(configs))

    def learn_from(self, experience: Sequence[Experience]) -> None:
        self._call("learn_from", tuple(experience))

    def propose(self, n: int) -> list[Config]:
        self._call("propose", n)
        answer = None if self._here is not None else self._searchers.ask(self._number, self._calls, self._there)
        if answer is None:
            self._here, answer = told(self._here, self._calls)
            self._calls.clear()  # nobody else needs them any more
        self._there = len(self._calls)
        self.failures = dict(answer.failures)
        if answer.failed is not None:
            raise SearchFailed(answer.failed)
        return list(answer.configs)

    def _call(self, method: str, argument: Any) -> None:
        self._calls.append((method, (argument,)))


class RaySearchers(Closing):
    """Makes searchers that live on one of `nodes`, the nodes on other machines by id and name. `say` is called with a
    line on where the searchers are, and on why they are here where no node can have them."""

    def __init__(
        self,
        server: ProcessServer,
        address: str,
        plugins: tuple[str, ...],
        *,
        nodes: Nodes,
        say: Callable[[str], object],
    ) -> None:
        self._server, self._nodes, self._say = server, nodes, say
        self._settings = SearchSettings(address, plugins, libraries())
        self._link: Worker | None = None
        self._made = 0
        self._said = ""

    def make(self, spec: str, space: SearchSpace, seed: int, history: Sequence[Trial] = ()) -> Searcher:
        """Make a searcher as `tuner.search.make_searcher` does. It computes here where there is no node elsewhere."""
        if not self._nodes():
            return make_searcher(spec, space, seed, history)
        self._made += 1
        return RaySearcher(self, self._made, ("make", (spec, space, seed, tuple(history))))

    def ask(self, searcher: int, calls: Sequence[Call], before: int) -> Proposed | None:
        """Return what the last of the calls gives, or None where no node can say. The node knows the first `before`
        calls."""
        answer = self._ask(searcher, calls, before)
        while isinstance(answer, Behind):  # the node is another one, or was started again
            answer = self._ask(searcher, calls, 0)
        if isinstance(answer, Unanswered):
            self._tell("Ray: searching here" + ("" if answer.why is None else f": {answer.why}"))
            return None
        return answer

    def _ask(self, searcher: int, calls: Sequence[Call], before: int) -> Proposed | Behind | Unanswered:
        nodes = self._nodes()
        if not nodes:
            return Unanswered(None)
        try:
            data = cloudpickle.dumps(list(calls[before:]))  # constraints and features of spaces are closures
        except Exception as error:  # a plug-in's space may hold anything
            return Unanswered(f"its space cannot be sent: {last_meaningful_line(str(error))}")
        seconds = _SILENCE_SECONDS
        if self._link is None:
            self._link, seconds = (
                self._server.spawn("tune-ray", _ENTRY, self._settings, cpus=usable_cpus()),
                _JOIN_SECONDS,
            )
        self._link.send(Ask(searcher, before, data, nodes))
        return self._hear(seconds)

    def _hear(self, seconds: float) -> Proposed | Behind | Unanswered:
        assert self._link is not None
        try:
            while self._link.connection.poll(seconds):
                message, seconds = self._link.connection.recv(), _SILENCE_SECONDS
                if isinstance(message, Proposed | Behind | Unanswered):
                    return message
                if isinstance(message, NotJoined):
                    self._drop()
                    return Unanswered(last_meaningful_line(message.why))
                if isinstance(message, SearchOn):
                    self._tell(f"Ray: searching on {message.name}{', as another is gone' if message.instead else ''}")
        except (EOFError, OSError):
            return Unanswered(last_meaningful_line(self._drop()))
        except BaseException:  # an interrupt may have left half a message
            self._drop()
            raise
        self._drop()
        return Unanswered("the cluster says nothing")

    def _tell(self, text: str) -> None:
        if text != self._said:
            self._said = text
            self._say(text)

    def _drop(self) -> str:
        """End the link, and return how it ended."""
        if self._link is None:
            return ""
        link, self._link = self._link, None
        return link.stop()

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
