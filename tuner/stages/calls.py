"""Reads a finished network of one device as kernel calls, and the tensors in memory that they read and write. Start at
`Calls.of`.

Two calls need an order only where one reads what the other writes. Calls that write parts of one joined tensor need
none, as their parts are disjoint (see `graph.lowering.concat`, the only module that makes calls in place).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax
from tvm.ir import Call, GlobalVar, IRModule, Var

from tuner.errors import BadInput
from tuner.graph import Placed, memory_as_operands
from tuner.graph.ir.bindings import operands
from tuner.stages.operators import OperatorGraph, StageOperator

_VIEWS = ("relax.reshape", "relax.memory.view")


@dataclass(frozen=True, eq=False)
class KernelCall:
    """A call of a kernel. `value` is the call itself. `reads` and `writes` are the allocations and parameters behind
    its operands."""

    value: Any
    name: str
    reads: tuple[Var, ...]
    writes: tuple[Var, ...]


@dataclass(frozen=True, eq=False)
class Calls:
    """The calls of a network. Memory is passed as operands in `module`, so its `main` has only calls and bindings that
    name memory.

    `kernels` holds the calls in order, and `values` the values of all other variables, allocations included.
    """

    module: IRModule
    kernels: tuple[KernelCall, ...]
    values: dict[Var, Any]

    @classmethod
    def of(cls, placed: Placed) -> Calls:
        """Read a placed network. Raises BadInput if it is on several devices, or if it computes anything but
        kernels."""
        if len(placed.constants) != 1:
            raise BadInput("stages are for networks on one device")
        inplace = list(_in_place(placed.module["main"]))
        return _Reader(memory_as_operands()(placed.module), inplace).read()

    @property
    def main(self) -> relax.Function:
        return self.module["main"]

    def graph(self, merges: Sequence[Hashable] = ()) -> OperatorGraph:
        """Return the calls as operators. `merges` says for every call which others it may be merged with (see
        `StageOperator`; default: none). Raises BadInput as `OperatorGraph` does."""
        readers: dict[Var, set[int]] = {}
        writers: dict[Var, set[int]] = {}
        operators = []
        for i, call in enumerate(self.kernels):
            before = {w for root in call.reads for w in writers.get(root, ())}
            before |= {r for root in call.writes for r in readers.get(root, ())}
            operators.append(StageOperator(call.name, tuple(sorted(before - {i})), merges[i] if merges else None))
            for root in call.reads:
                readers.setdefault(root, set()).add(i)
            for root in call.writes:
                writers.setdefault(root, set()).add(i)
        return OperatorGraph(tuple(operators))


def _in_place(main: relax.Function) -> Iterable[tuple[int, ...]]:
    """Yield, for every kernel call, the indices of the arguments that it writes in place."""
    for block in main.body.blocks:
        for binding in block.bindings:
            value = binding.value
            if isinstance(value, Call) and getattr(value.op, "name", "").startswith("relax.call_"):
                indices = getattr(value.attrs, "inplace_indices", ()) if value.attrs is not None else ()
                yield tuple(int(i) for i in indices or () if int(i) >= 0)


class _Reader:
    def __init__(self, module: IRModule, inplace: list[tuple[int, ...]]) -> None:
        self._module = module
        self._inplace = iter(inplace)
        self._values: dict[Var, Any] = {}
        self._roots: dict[Var, tuple[Var, ...]] = {p: (p,) for p in module["main"].params}
        self._kernels: list[KernelCall] = []
        self._written: set[Var] = set()

    def read(self) -> Calls:
        for block in self._module["main"].body.blocks:
            for binding in block.bindings:
                self._binding(binding.var, binding.value)
        return Calls(self._module, tuple(self._kernels), self._values)

    def _binding(self, var: Var, value: Any) -> None:
        name = getattr(value.op, "name", "") if isinstance(value, Call) else ""
        if isinstance(value, Call) and isinstance(value.op, GlobalVar | relax.ExternFunc):
            self._kernels.append(self._kernel(value))
        elif name == "relax.builtin.alloc_tensor":
            self._values[var], self._roots[var] = value, (var,)
        elif not isinstance(value, Call) or name in _VIEWS:
            self._values[var] = value
            self._roots[var] = tuple(r for leaf in operands(value) for r in self._roots.get(leaf, ()))
        else:
            raise BadInput(f"{name or value}: is no kernel, and may have side effects: stages would change their order")

    def _kernel(self, value: Call) -> KernelCall:
        """Return a call with what it reads and writes. It writes allocations that were never used before, and what it
        writes in place."""
        name = value.op.name_hint if isinstance(value.op, GlobalVar) else str(value.op.global_symbol)
        if isinstance(value.op, relax.ExternFunc):
            raise BadInput(f"{name}: is no kernel of ours, and may have side effects: stages would change their order")
        roots = [self._of(argument) for argument in value.args]
        written = {r for i in next(self._inplace) for r in roots[i]}
        written.update(r for found in roots for r in found if r in self._values and r not in self._written)
        self._written.update(written)
        reads = dict.fromkeys(r for found in roots for r in found if r not in written)
        return KernelCall(value, str(name), tuple(reads), tuple(r for r in dict.fromkeys(_flat(roots)) if r in written))

    def _of(self, argument: Any) -> tuple[Var, ...]:
        return tuple(r for leaf in operands(argument) for r in (self._roots.get(leaf, ()) if _is_var(leaf) else ()))


def _flat(found: Iterable[tuple[Var, ...]]) -> Iterable[Var]:
    return (root for roots in found for root in roots)


def _is_var(expr: Any) -> bool:
    return isinstance(expr, Var)
