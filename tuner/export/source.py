"""Write the C source of an exported network: its tables and its calls. Start at `Source`.

The text includes runtime/network.inc, which is the same for all networks. Kernels are called in straight-line code.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from itertools import accumulate

import tvm_ffi

from tuner.export.device import DRIVERS, DeviceTables
from tuner.export.layout import HOST, Layout, Place, bytes_of, kernels_of
from tuner.export.text import array_of, literal
from tuner.graph import COPY, Program, TensorInfo
from tuner.graph.lowering.program import Stage

_SYMBOL = "__tvm_ffi_"  # before the names of kernels in object files
_PLACES = {place: f"IN_{place.name}" for place in Place}


def runtime(name: str) -> str:
    """Return the text of a file of the runtime."""
    return (files(__package__) / "runtime" / name).read_text()


def filled(template: str, values: Mapping[str, object]) -> str:
    """Return a template of the runtime with @WORDS@ replaced by values."""
    text = runtime(template)
    for word, value in values.items():
        text = text.replace(f"@{word}@", str(value))
    return text


@dataclass(frozen=True)
class Source:
    """A network that is to become C, under a `name` that is an identifier.

    `inputs` and `outputs` are the model's. `threads` is the number that the kernels were tuned for, `features` are the
    instruction sets that they use, and `identity` are the 16 bytes that the file of weights has to have. `tables` are
    those of the device that is not the host, if there is one.
    """

    name: str
    program: Program
    layout: Layout
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    threads: int
    features: tuple[str, ...]
    identity: bytes
    tables: DeviceTables | None = None

    @cached_property
    def words(self) -> dict[str, object]:
        """Return what stands for the @WORDS@ of templates."""
        return {
            "NAME": self.name,
            "MACRO": self.name.upper(),
            "INPUTS": len(self.inputs),
            "OUTPUTS": len(self.outputs),
            "INPUT_LIST": _listed(self.inputs),
            "OUTPUT_LIST": _listed(self.outputs),
            "DRIVER": DRIVERS[self.tables.kind] if self.tables else "device",
        }

    def header(self) -> str:
        """Return the header that users include."""
        return filled("interface.h.in", self.words)

    def body(self) -> str:
        """Return the C file of the network."""
        name, macro = self.name, self.name.upper()
        return "\n".join(
            (
                f"/* The network {name}, as edgetune exported it: tables, and the calls of its kernels. */",
                "#define _GNU_SOURCE",
                f'#include "{name}.h"',
                '#include "network.h"',
                '#include "pool.h"',
                *self._device(),
                f"#define NETWORK(what) {name}_##what",
                f"#define STATUS(what) {macro}_##what",
                *self._sizes(),
                *self._tables(),
                *(f"int {_SYMBOL}{k}(void *, const Any *, int32_t, Any *);" for k in kernels_of(self.program, HOST)),
                *(["#define STAGED"] if self._stages else []),
                filled("network.inc", self.words),
                *self._groups(),
                "static int call_kernels(NETWORK(context) *context) {",
                *self._calls(),
                "  return STATUS(OK);",
                "}",
                "",
            )
        )

    def _device(self) -> Iterable[str]:
        """Yield the tables of the device that is not the host, if there is one."""
        if self.tables is None:
            return
        yield '#include "device.h"'
        yield "#include <pthread.h>"
        yield "#define DEVICE_TABLES"
        yield from self.tables.lines()

    def _sizes(self) -> Iterable[str]:
        layout = self.layout
        yield f"#define ARENA_BYTES ((size_t){layout.arena})"
        yield f"#define PART_BYTES ((size_t){layout.part})"
        yield f"#define WEIGHT_BYTES ((size_t){layout.weights})"
        yield f"#define THREADS {self.threads}"
        yield f"#define COMPUTES_HERE {int(bool(kernels_of(self.program, HOST)))}"

    def _tables(self) -> Iterable[str]:
        program = self.program
        yield f"static const unsigned char identity[16] = {{{', '.join(map(str, self.identity))}}};"
        yield f"static const char *const features[] = {{{', '.join(map(literal, self.features)) or '0'}}};"
        yield from self._values()
        operands = [operand for call in program.calls for operand in call.operands]
        yield array_of("int32_t", "operands", operands)
        yield f"enum {{ OPERANDS = {len(operands)} }};"
        bound = [i for i, held in enumerate(self.layout.values) if held.place in (Place.INPUT, Place.OUTPUT)]
        yield array_of("int32_t", "bound", bound)
        yield f"enum {{ BOUND = {len(bound)} }};"
        yield array_of("int32_t", "given", program.inputs)
        yield array_of("int32_t", "results", program.outputs[: len(self.outputs)])
        counts = [program.outputs[o.count.result] if o.count else 0 for o in self.outputs]
        yield array_of("int32_t", "counts", counts)
        for kind, tensors in (("inputs", self.inputs), ("outputs", self.outputs)):
            yield from self._described(kind, tensors)

    def _values(self) -> Iterable[str]:
        """Yield the shapes of all values, and their table."""
        shapes, rows = list[int](), list[str]()
        for value, held in zip(self.program.values, self.layout.values, strict=True):
            dtype = tvm_ffi.dtype(value.dtype)
            kind = f"{{{dtype.type_code}, {dtype.bits}, 1}}"
            place = f"{_PLACES[held.place]}, {held.index}, {held.offset}u"
            rows.append(f"  {{shapes + {len(shapes)}, {len(value.shape)}, {kind}, {place}}},")
            shapes += value.shape
        yield array_of("int64_t", "shapes", shapes)
        yield f"enum {{ VALUES = {len(rows)} }};"
        yield from ("static const Value values[VALUES] = {", *rows, "};")

    def _described(self, kind: str, tensors: tuple[TensorInfo, ...]) -> Iterable[str]:
        macro = self.name.upper()
        for i, tensor in enumerate(tensors):
            yield array_of("int64_t", f"shape_of_{kind}_{i}", tensor.shape)
        yield f"const {self.name}_tensor {self.name}_{kind}[{macro}_{kind.upper()}] = {{"
        places = self.program.inputs if kind == "inputs" else self.program.outputs
        for i, (tensor, place) in enumerate(zip(tensors, places, strict=False)):
            counted = tensor.count.axis if tensor.count else -1
            size = bytes_of(self.program.values[place])
            rank = len(tensor.shape)
            yield f'  {{{literal(tensor.name)}, "{tensor.dtype}", shape_of_{kind}_{i}, {rank}, {counted}, {size}u}},'
        yield "};"

    @cached_property
    def _firsts(self) -> tuple[int, ...]:
        """Return where the operands of each call begin among those of all."""
        return (0, *accumulate(len(call.operands) for call in self.program.calls))

    @cached_property
    def _stages(self) -> tuple[Stage, ...]:
        """Return the stages of the host. Another device has its own in its tables."""
        return tuple(stage for stage in self.program.stages if self._is_on_host(stage.first))

    def _is_on_host(self, call: int) -> bool:
        program = self.program
        return program.values[program.calls[call].operands[-1]].device == program.devices.index(HOST)

    def _groups(self) -> Iterable[str]:
        """Yield a function for each group of calls of a stage of the host, and their tables."""
        for number, stage in enumerate(self._stages):
            names = [f"stage_{number}_{group}" for group in range(len(stage.groups))]
            for name, calls in zip(names, stage.ranges, strict=True):
                yield f"static int {name}(NETWORK(context) *context, Workspace *own) {{"
                yield from (self._call(i, "own") for i in calls)
                yield from ("  return STATUS(OK);", "}")
            yield f"static const GroupCalls groups_{number}[] = {{{', '.join(names)}}};"
            yield array_of("int", f"work_{number}", [work for work, _ in stage.groups])

    def _calls(self) -> Iterable[str]:
        staged = {stage.first: number for number, stage in enumerate(self._stages)}
        inside = {at for stage in self._stages for at in stage.calls}
        for at, call in enumerate(self.program.calls):
            if at in staged:
                number = staged[at]
                yield f"  STAGE({len(self._stages[number].groups)}, work_{number}, groups_{number});"
            if at in inside:
                continue
            if call.function == COPY:
                yield self._copy(*call.operands)
            elif self._is_on_host(at):
                yield self._call(at, "&context->whole")
            elif self.tables is not None and at in self.tables.plan.begins:
                yield f"  LAUNCH({self.tables.plan.begins[at]});"

    def _call(self, at: int, workspace: str) -> str:
        """Return the call of a kernel of the host, whose own memory the `workspace` describes."""
        call, scratch = self.program.calls[at], self.layout.scratch[at]
        space = self.program.workspaces.get(call.function)
        operands = f"{self._firsts[at]}, {len(call.operands)}"
        return f"  CALL({workspace}, {_SYMBOL}{call.function}, {operands}, {scratch}u, {space.whole if space else 0}u);"

    def _copy(self, source: int, target: int) -> str:
        """Return the copy of a value to another device."""
        held, size = self.layout.values, bytes_of(self.program.values[source])
        if held[source].place is Place.DEVICE:
            return f"  READ({held[source].index}, {target}, {size}u);"
        return f"  WRITE({source}, {held[target].index}, {size}u);"


def _listed(tensors: Iterable[TensorInfo]) -> str:
    """Return the lines of a comment that list tensors."""
    return "\n".join(
        f" *   {literal(t.name)}: {t.dtype} of shape {list(t.shape)}".replace("*/", "* /") for t in tensors
    )
