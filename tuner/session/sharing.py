"""Share the tasks of a database between sessions that tune for the same device at the same time, in processes here or
on other hosts. Each session works on tasks that no other works on, and learns what the others have found. Start at
`Sharing`.

A session claims the task that it proposes configs for (tuning_db.claims), and keeps its claim on tasks whose configs
are still being measured. A thread renews the claims, so that a candidate which takes long does not cost the session a
claim. If others have claimed all tasks that are left, the session waits, because one of these tasks may still need it.
"""

from __future__ import annotations

import os
import platform
import threading
import time
from collections.abc import Callable, Collection, Sequence
from types import TracebackType
from typing import Self

from tuner.session.journal import is_gone
from tuner.session.task import TaskState
from tuner.session.task_trials import is_current
from tuning_db.claims import Claims, process_of, trial_counts
from tuning_db.errors import DatabaseError
from tuning_db.record import DeviceKey
from tuning_db.run_control import Requests, RunControl
from tuning_db.store import Store

LEASE_SECONDS = 60.0
_RENEWALS = 4  # per lease
_WAIT_SECONDS = 0.5  # between two looks at what other sessions have done


class Sharing:
    """A session's part in a database that several sessions share. Use it in a `with` block, because it owns a thread
    and claims. Every method raises DatabaseError if the database cannot be read or written.

    `lease_seconds` is the time without a sign of life after which others may take over the session's tasks. `notice` is
    called with a line that says what the session waits for.
    """

    def __init__(
        self,
        store: Store,
        device: DeviceKey,
        states: Sequence[TaskState],
        *,
        lease_seconds: float = LEASE_SECONDS,
        notice: Callable[[str], None] | None = None,
    ) -> None:
        self._store, self._device, self._states = store, device, states
        self._claims = Claims(store, device, _new_owner(), lease_seconds)
        self._control = RunControl(store, device)
        self._notice = notice or (lambda _: None)
        self._noticed = False
        self._held: list[TaskState] = []
        self._changing = threading.Lock()  # guards `_held` and the claims in the database
        self._counts = {
            s.task.workload.key: len(s.trials.recorded) for s in states
        }  # a task whose count differs is read again
        self._ended = threading.Event()
        self._failure: DatabaseError | None = None
        self._heart = threading.Thread(target=self._beat, args=(lease_seconds / _RENEWALS,), daemon=True)
        self._from_others = 0  # trials that other sessions have measured meanwhile

    def __enter__(self) -> Self:
        self._heart.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        self._heart.join()
        if self._held:
            self._claims.give_back()

    def _beat(self, seconds: float) -> None:
        while not self._ended.wait(seconds):
            if self._held:
                try:
                    with self._changing:
                        kept = self._claims.renew()  # fewer if this machine slept and others took over
                        self._held = [s for s in self._held if s.task.workload.key in kept]
                except DatabaseError as error:  # raised in the session's thread by `hold`
                    self._failure = error
                    return

    def recorded(self, state: TaskState) -> None:
        """Note that the session has added a trial of its own."""
        self._counts[state.task.workload.key] += 1

    def hold(self, state: TaskState) -> bool:
        """Claim the task for this session, and return whether that succeeded. The claim lasts until the session holds
        another task and no config of this one is being measured."""
        if self._failure is not None:
            raise self._failure
        with self._changing:
            if state not in self._held:
                self._held = [s for s in self._held if s.pending]
                if not self._claims.take(state.task.workload, _is_dead, [s.task.workload for s in self._held]):
                    return False
                self._held.append(state)
        return True

    def hold_one(self, states: Sequence[TaskState], choose: Callable[[list[TaskState]], TaskState]) -> TaskState | None:
        """Claim a task that no other session works on, and return it. It is the first of `states` that `choose` picks.
        Return None if there is none."""
        taken = self.with_others(states)
        free = [s for s in states if s not in taken]
        while free:
            state = choose(free)
            if self.hold(state):
                return state
            free.remove(state)  # another session was faster
        return None

    def with_others(self, states: Sequence[TaskState]) -> list[TaskState]:
        """Return those of the tasks that another session works on now."""
        others = self._claims.of_others() if states else {}
        return [s for s in states if (owner := others.get(s.task.workload.key)) and not _is_dead(owner)]

    def catch_up(self) -> None:
        """Learn the trials that other sessions have measured since."""
        workloads = {s.task.workload.key: s for s in self._states}
        counts = trial_counts(self._store, [s.task.workload for s in self._states], self._device)
        for key, count in counts.items():
            if count != self._counts[key]:
                self._learn(workloads[key])
                self._counts[key] = count

    def _learn(self, state: TaskState) -> None:
        known = set(state.trials.recorded)
        templates = {s.template for s in state.space.spaces} if state.space else set()
        recorded = self._store.trials(state.task.workload, self._device)
        new = [t for t in recorded if t not in known and is_current(t, templates)]
        state.add_from_others(new)
        self._from_others += len(new)

    def requests(self) -> Requests:
        """Return what a person asks of this run: to pause, or to skip tasks."""
        return self._control.made()

    def skip(self, workloads: Collection[str]) -> None:
        """Skip the tasks of these workloads, given by key, for the rest of the session."""
        for state in self._states:
            state.skipped = state.skipped or state.task.workload.key in workloads

    def wait_for_resume(self) -> None:
        """Wait until all runs may go on, and skip the tasks that a person wants skipped meanwhile."""
        self._notice("paused by `tune watch`: go on by its button, or by `tune watch --resume`")
        paused = True
        while paused:
            self._rest()
            requests = self.requests()
            self.skip(requests.skipped)
            paused = requests.paused

    def _rest(self) -> None:
        """Give all claims back and sleep for a moment, since other sessions may wait for these tasks."""
        with self._changing:
            if self._held:
                self._held = []
                self._claims.give_back()
        time.sleep(_WAIT_SECONDS)

    def wait(self) -> None:
        """Sleep until the other sessions may have gone on. This session gives its claims back, because the others may
        wait for them, too."""
        if not self._noticed:
            owners = sorted({process_of(owner) for owner in self._claims.of_others().values()})
            self._notice(f"what is left is being tuned by {', '.join(owners) or 'others'}; waiting for it")
            self._noticed = True
        self._rest()

    def remarks(self) -> list[str]:
        """Return a line for every task that was skipped, and one on the trials of other sessions."""
        skipped = [f"{s.task.name}: skipped, by `tune watch`" for s in self._states if s.skipped]
        shared = [f"{n} more trials are other runs', at the same time"] if (n := self._from_others) else []
        return [*skipped, *shared]


def _namespace() -> int:
    """Return the namespace of this process's id. Containers may have the same host name, while each has its own
    processes."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:  # not Linux
        return 0


def _new_owner() -> str:
    return f"{platform.node()}:{os.getpid()}/{_namespace()}.{os.urandom(4).hex()}"


def _is_dead(owner: str) -> bool:
    """Return whether the owner of a claim was a process of this machine that is gone."""
    process, _, own = owner.partition("/")
    return own.partition(".")[0] == str(_namespace()) and is_gone(process)
