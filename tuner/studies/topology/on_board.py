"""Measures the topology of a board's GPU and CPU on the board. Start at `measured_on_board`.

Chains of kernels are exported for the board, and its agent times them (`export.board_timing`). Of two chains, one has
more launches, or crosses more often from one device to the other, and what it takes more is what these take. They run
as the kernels and copies of an exported network do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from tvm import tirx

from tuner.devices import Device
from tuner.devices.board import name_on_board, places_on_board, reports
from tuner.devices.peak import multipliers
from tuner.devices.roof import sum_kernel
from tuner.devices.sharing import shares_cores
from tuner.export.board_timing import BoardTiming, disturbed, timed_there
from tuner.export.chain import Chain
from tuner.placement.fallback import CPU, GPU
from tuner.studies.topology.here import HOST, link_of
from tuner.studies.topology.model import DeviceSpec, Memory, Topology

_SIZES = (1 << 12, 1 << 18, 1 << 22)  # bytes of the copies that a link is fitted to
_FEW = 1 << 10  # numbers: next to nothing to compute
_LAUNCHES = 20
_SUMS = 4
_LEAST_ELEMENTS = 1 << 22  # of each array that memory is timed with: several times the cache of most boards
_SHORTER = 8  # by which kernels of multiply-adds are shorter than here: boards are slower
_FLOAT = 4
_ROUNDS = 2

Tell = Callable[[str], object]


def measured_on_board(given: str, name: str, devices: Sequence[Device], tell: Tell = lambda _: None) -> Topology:
    """Measure the topology of a GPU and the CPU of a board, which `given` names, such as "board:pi/opencl:0,cpu".
    `devices` are the same, opened by `open_to_build`. Each direction of the link gets half of what there and back
    takes.

    This takes some ten seconds, and more where the board is slow. `tell` is called with what is being measured, and
    where a turn is waited for. Raises BadInput where the board cannot run the chains, and where a link takes no longer
    than what disturbs its measurement.
    """
    board, places = places_on_board(given)
    facts, report = reports(name_on_board(board, places[GPU]), tell)
    here = Memory(HOST, float(facts["memory_bytes"]))
    own = Memory(devices[GPU].name, float(devices[GPU].memory_bytes or math.inf))
    is_shared = shares_cores(devices[GPU]) or report.get("host_memory", False)
    memories = [here if is_shared else own, here]
    specs = []
    for index, device in enumerate(devices):
        tell(f"{device.title} of board {board}: peaks")
        specs.append(_spec(given, devices, index, memories[index], tell))
    copies = BoardTiming(given, devices, tell).crossings(devices[GPU], devices[CPU], _SIZES)
    seconds = [copies[size][0] for size in _SIZES]
    links = tuple(
        link_of(devices[source], devices[target], _SIZES, seconds) for source, target in ((GPU, CPU), (CPU, GPU))
    )
    return Topology(name, tuple(specs), tuple(dict.fromkeys(reversed(memories))), links)


def _spec(given: str, devices: Sequence[Device], index: int, memory: Memory, tell: Tell) -> DeviceSpec:
    """Measure the peaks of one device."""
    device, on_host = devices[index], shares_cores(devices[index])
    few = sum_kernel(device, _FEW)
    elements = max(_LEAST_ELEMENTS, device.cache_bytes // 3)
    much = sum_kernel(device, elements)
    adders = [replace(m, steps=max(1, m.steps // _SHORTER)) for m in multipliers(device)]
    chains = [
        _repeated((_FEW,), index, few, 1),
        _repeated((_FEW,), index, few, 1 + _LAUNCHES),
        _repeated((elements,), index, much, 1),
        _repeated((elements,), index, much, 1 + _SUMS),
        *(_repeated(adder.shape, index, adder.prim_func(), 1) for adder in adders),
    ]
    base, launches, sum_, sums, *adding = timed_there(given, devices, chains, _ROUNDS, tell)
    what = f"{given}: the peak of {device.name}"
    return DeviceSpec(
        name=device.name,
        kind="cpu" if on_host else "gpu",
        flops=max(a.flop / _more(s, base, what) for a, s in zip(adders, adding, strict=True)),
        bandwidth=3.0 * _FLOAT * elements * _SUMS / _more(sums, sum_, what),
        memory=memory.name,
        overhead=max(launches - base, 0.0) / _LAUNCHES,
        cores=HOST if on_host else "",
    )


def _repeated(shape: tuple[int, ...], device: int, kernel: tirx.PrimFunc, times: int) -> Chain:
    return Chain(shape, [(device, kernel)] * times)


def _more(longer: float, shorter: float, what: str) -> float:
    """Return what a chain takes more than another. Raises BadInput where it takes nothing more."""
    if longer <= shorter:
        raise disturbed(what)
    return longer - shorter
