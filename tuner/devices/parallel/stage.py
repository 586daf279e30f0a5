"""Offers the packed function by which a network on the host runs a stage: groups of kernels at the same time, each on a
part of the pool's threads (`stage.c`). Start at `offer_stages`.

A stage is one call of the virtual machine, with functions among its arguments, as `stage_arguments` has them. An
instrument that watches the machine's calls would not see a stage's kernels: `one_by_one` shows them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import tvm_ffi
from tvm.runtime.vm import VMInstrumentReturnKind

from board_agent.pool import Pool

STAGE = "edgetune.stage.parts"

Kernel = tuple[str, Any, Sequence[Any]]  # name, function, arguments


def stage_arguments(groups: Iterable[tuple[int, Sequence[Kernel]]]) -> list[Any]:
    """Return the arguments of a stage. Each of `groups` has its work (1 or more), in proportion to which it gets
    threads, and its kernels. The calling thread runs the last group. Functions and arguments may be expressions."""
    found: list[Any] = [0]
    for work, kernels in groups:
        found[0] += 1
        found += [work, len(kernels)]
        for name, function, arguments in kernels:
            found += [len(arguments), name, function, *arguments]
    return found


def groups_of(arguments: Sequence[Any]) -> Iterator[tuple[int, list[Kernel]]]:
    """Yield the work and the kernels of each group, from a stage's arguments."""
    left = iter(arguments)

    def kernel() -> Kernel:
        count, name, function = int(next(left)), next(left), next(left)
        return str(name), function, [next(left) for _ in range(count)]

    for _ in range(int(next(left))):
        work, kernels = int(next(left)), int(next(left))
        yield work, [kernel() for _ in range(kernels)]


def _kernels(arguments: Sequence[Any]) -> Iterator[Kernel]:
    """Yield the kernels of all groups, from a stage's arguments."""
    return chain.from_iterable(kernels for _, kernels in groups_of(arguments))


def offer_stages(pool: Pool | None) -> None:
    """Let stages of networks that are loaded from now on run on the pool's threads. A network may come from a system
    that had a pool to one without: its kernels then run one after the other."""
    function = _in_order
    if pool is not None:
        function = tvm_ffi.Function.__from_extern_c__(pool.stage, keep_alive_object=pool)
    tvm_ffi.register_global_func(STAGE, function, override=True)


def _in_order(*arguments: Any) -> None:
    for _, function, operands in _kernels(arguments):
        function(*operands)


def one_by_one(instrument: Callable[..., int]) -> Callable[..., int]:
    """Return an instrument of the virtual machine that sees every kernel of a stage, too. The kernels then run one
    after the other, each on all threads."""

    def watch(function: Any, name: str, before: bool, result: Any, *arguments: Any) -> int:
        if name != STAGE:
            return instrument(function, name, before, result, *arguments)
        for kernel, compute, operands in _kernels(arguments):
            if instrument(compute, kernel, True, None, *operands) != VMInstrumentReturnKind.SKIP_RUN:
                instrument(compute, kernel, False, compute(*operands), *operands)
        return VMInstrumentReturnKind.SKIP_RUN

    return watch
