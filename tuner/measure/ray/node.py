"""Runs on a node of a Ray cluster: an actor that builds candidates as they are built locally, in killable children with
limits on memory and time. Start at `NodeBuilder`."""

from __future__ import annotations

import os
import platform
import queue
import tempfile
from dataclasses import replace
from pathlib import Path

from tvm.target import Target

from tuner.devices import usable_cpus
from tuner.errors import BadInput
from tuner.measure.codegen.toolchain import check_toolchain
from tuner.measure.messages import BuildJob
from tuner.measure.ray.messages import NodeSettings
from tuner.measure.ray.sources import source_digest
from tuner.measure.runner import Candidate
from tuner.measure.scratch import Scratch, disk_problem
from tuner.measure.workers.build_pool import BuilderPool, PoolOptions
from tuner.measure.workers.worker import ProcessServer
from tuner.versions import versions
from tuning_db.record import Failure

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")  # the same in all containers of a machine


def facts() -> dict[str, str]:
    """Return what must be alike on two machines of which one builds for the other, and which machine this is."""
    return {
        **versions(),
        "sources": source_digest(),
        "machine": platform.machine(),
        "boot": _BOOT_ID.read_text().strip(),
        "access": os.environ.get("RAY_AUTH_MODE", "").lower(),
    }


class NodeBuilder:
    """The actor that builds on a node. As many threads as there are `builders` may call `build` at a time."""

    def facts(self) -> dict[str, str]:
        """Return the facts of this node, see `facts`."""
        return facts()

    def start(self, settings: NodeSettings, builders: int) -> str | None:
        """Get ready to build. Return a line where this node cannot build, else None.

        Raises RuntimeError or OSError for a problem that may pass, such as a full disk.
        """
        try:
            self._start(settings, builders)
        except BadInput as problem:
            return str(problem)
        return None

    def _start(self, settings: NodeSettings, builders: int) -> None:
        target = Target(settings.builder.target)
        if "mtriple" not in target.attrs and platform.machine() != settings.machine:
            raise BadInput(f"is {platform.machine()}, and candidates are for {settings.machine}")
        own = replace(settings.builder, linker=check_toolchain(target))
        self._scratch = Scratch()
        server = ProcessServer(self._scratch.path, ("tuner.measure.workers.build_main", *settings.plugins))
        self._idle: queue.Queue[tuple[Path, BuilderPool]] = queue.Queue()
        for number in range(builders):
            # Not pinned: two nodes may be containers on one machine, and would take the same core.
            options = PoolOptions(1, tuple(usable_cpus()), settings.compile_seconds, pinned=False)
            self._idle.put((self._scratch.path / f"k{number}.so", BuilderPool(server, own, options)))
        outcome = self._build(None)
        if isinstance(outcome, Failure):
            raise BadInput(f"a kernel that is known to be good cannot be built there: {outcome.message}")

    def build(self, candidate: Candidate) -> bytes | Failure:
        """Return the library of a candidate, or why there is none. Raises RuntimeError where the node's disk is to
        blame."""
        return self._build(candidate)

    def _build(self, candidate: Candidate | None) -> bytes | Failure:
        library, pool = self._idle.get()
        try:
            (failure,) = pool.build([BuildJob(candidate, str(library))])
            problem = disk_problem(failure)
            if problem is not None:
                raise RuntimeError(f"{tempfile.gettempdir()}: {problem}")
            return library.read_bytes() if failure is None else failure
        finally:
            library.unlink(missing_ok=True)
            self._idle.put((library, pool))

    def ping(self) -> None:
        """Answer, which shows that the node is alive."""
