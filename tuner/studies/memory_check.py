"""Checks whether placements on a GPU and the CPU fit into the memories of a topology. Start at `Limits`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tuner.devices import Device
from tuner.errors import BadInput
from tuner.graph import FusedGraph
from tuner.placement.fallback import CPU, GPU, within_memory_of
from tuner.placement.memory import memory_on
from tuner.studies.topology import Memory, Topology


@dataclass(frozen=True)
class Limits:
    """Holds the memories of a topology, and in `gpu` the bytes that the GPU may use (None: all of its memory)."""

    topology: Topology
    gpu: int | None

    @staticmethod
    def of(topology: Topology, gpu: Device) -> Limits:
        """Return the limits where the GPU may use the bytes that the device reports, or fewer if its own memory in the
        topology has fewer."""
        own = topology.memory_of[GPU] != topology.memory_of[CPU]
        given = topology.memories[topology.memory_of[GPU]].bytes if own else math.inf
        least = min(given, math.inf if gpu.memory_bytes is None else gpu.memory_bytes)
        return Limits(topology, None if math.isinf(least) else int(least))

    def kept(self, graph: FusedGraph, placement: Sequence[int]) -> list[int]:
        return within_memory_of(graph, placement, self.gpu)

    def hold(self, graph: FusedGraph, placement: Sequence[int]) -> bool:
        return self.kept(graph, placement) == list(placement) and self._too_small(graph, placement) is None

    def check(self, graph: FusedGraph, placement: Sequence[int]) -> None:
        """Check that some placement can fit. A needed value is held by some device, so all memories together must hold
        at least what one device would need alone. `placement` is the one whose needs the message gives. Raises BadInput
        where none fits."""
        least = memory_on(graph, [CPU] * len(graph.steps), CPU)
        if least > sum(memory.bytes for memory in self.topology.memories):
            raise self.refusal(graph, placement)

    def refusal(self, graph: FusedGraph, placement: Sequence[int]) -> BadInput:
        """Return the error that names the memory which is too small.

        The placement is examined with its last steps moved to the CPU where the GPU's memory is too small. If no memory
        is too small then, the CPU lacks what it would have to compute, and the placement is examined as it is.
        """
        found = self._too_small(graph, self.kept(graph, placement)) or self._too_small(graph, placement)
        if found is None:
            has = f"{self.topology.name}: the GPU may have {self.gpu} bytes, and the CPU lacks what does not fit there"
            return BadInput(f"{has}: correct its lacks, or give the GPU more")
        memory, needs = found
        return BadInput(
            f"{self.topology.name}: memory {memory.name!r} has {memory.bytes:.0f} bytes, the network needs {needs}: "
            "correct its bytes if there are more, or take devices with more memory"
        )

    def _too_small(self, graph: FusedGraph, placement: Sequence[int]) -> tuple[Memory, int] | None:
        """Return the first memory that is too small, and the bytes that are needed of it."""
        needs = [0] * len(self.topology.memories)
        for device, memory in enumerate(self.topology.memory_of):
            needs[memory] += memory_on(graph, placement, device)
        each = zip(self.topology.memories, needs, strict=True)
        return next((found for found in each if found[1] > found[0].bytes), None)
