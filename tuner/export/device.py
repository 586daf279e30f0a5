"""Write the tables of a network's launches on a device that is not the host: OpenCL's or CUDA's. Start at
`device_tables`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from tuner.devices import cuda, flush_every
from tuner.export.layout import HOST, Layout
from tuner.export.text import literal, literal_lines
from tuner.graph import COPY, Program
from tuner.module.manifest import Processor

_OPTIONS = "// edgetune-build-options:"  # begins the comment with build options in a kernel's source
DRIVERS = {"opencl": "OpenCL", "cuda": "CUDA"}  # what the kinds of devices are called that networks are exported for


@dataclass(frozen=True)
class _Code:
    """The kernels of a function, and `options`, as runtime/device.h explains them."""

    content: bytes
    options: str


@dataclass(frozen=True)
class _Launch:
    """A launch of a kernel of the `code`-th code. `arguments` are buffers, or pairs of a dtype and a number."""

    code: int
    kernel: str
    groups: tuple[int, ...]
    items: tuple[int, ...]
    local_bytes: int
    arguments: tuple[int | tuple[str, Any], ...]


@dataclass(frozen=True)
class DeviceTables:
    """The codes of all kernels of a `kind` of device, and the launches of all calls. `spans` are launches that follow
    each other, as the first and how many. `begins` has the span that begins with a call, by call."""

    kind: str
    layout: Layout
    codes: tuple[_Code, ...]
    launches: tuple[_Launch, ...]
    spans: tuple[tuple[int, int], ...]
    begins: Mapping[int, int]
    flush_every: int

    def lines(self) -> Iterator[str]:
        """Yield the tables in C, as runtime/device.h has them."""
        for i, code in enumerate(self.codes):
            yield f"static const _Alignas(64) unsigned char code_{i}[] ="
            yield f"{literal_lines(code.content)};"
        codes = (f"code_{i}, {len(code.content)}u, {literal(code.options)}" for i, code in enumerate(self.codes))
        buffers = [f"{b.offset}u, {b.size}u, {int(b.constant)}" for b in self.layout.device.buffers]
        arguments = [_argument(argument) for launch in self.launches for argument in launch.arguments]
        yield from _table("Code", "codes", codes)
        yield from _table("Buffer", "buffers", buffers)
        yield from _table("Argument", "arguments", arguments)
        yield from _table("Launch", "launches", self._launches())
        yield from _table("Span", "spans", (f"{first}, {count}" for first, count in self.spans))
        yield "static const DeviceTables device_tables = {"
        yield f"    codes, {len(self.codes)}, buffers, {len(buffers)}, arguments, {len(arguments)},"
        yield f"    launches, {len(self.launches)}, spans, {len(self.spans)}, {self.flush_every},"
        yield "};"

    def _launches(self) -> Iterator[str]:
        first = 0
        for launch in self.launches:
            shape = f"{_triple(launch.groups)}, {_triple(launch.items)}, {launch.local_bytes}u"
            yield f"{launch.code}, {literal(launch.kernel)}, {shape}, {first}, {len(launch.arguments)}"
            first += len(launch.arguments)


def device_tables(program: Program, layout: Layout, processor: Processor | None) -> DeviceTables | None:
    """Return the tables of the device that is not the host, which `processor` describes, or None if there is none.

    Raises BadInput if no compiler here knows the architecture of a CUDA device, and CompileError if its compiler
    refuses a kernel.
    """
    if processor is None:
        return None
    kind, host = next(k for k in program.devices if k != HOST), program.devices.index(HOST)
    sources, launches = dict[str, int](), list[_Launch]()
    begins, spans = dict[int, int](), list[tuple[int, int]]()
    begin: tuple[int, int] | None = None  # the call and the launch that the present span begins with

    def end() -> None:
        """End the present span. One without launches is left out."""
        if begin is not None and begin[1] < len(launches):
            begins[begin[0]] = len(spans)
            spans.append((begin[1], len(launches) - begin[1]))

    for at, call in enumerate(program.calls):
        if call.function == COPY or program.values[call.operands[-1]].device == host:
            end()
            begin = None
            continue
        begin = begin or (at, len(launches))
        described = program.launches[call.function]
        code = sources.setdefault(str(described["source"]), len(sources))
        held = [layout.values[operand].index for operand in call.operands]
        launches += _launched(described["launches"], code, partial(_bound, held, layout.device.scratch[at]))
    end()
    flushed = flush_every(str(processor.key["family"]))
    codes = _codes(kind, sources, processor)
    return DeviceTables(kind, layout, codes, tuple(launches), tuple(spans), begins, flushed)


def _launched(described: Sequence[Mapping[str, Any]], code: int, bound: Any) -> Iterator[_Launch]:
    """Yield the launches of a call, except those that work on an empty tensor. `bound` returns the buffer, or the
    number, that an argument is."""
    for launch in described:
        if 0 in (*launch["groups"], *launch["items"]):
            continue
        arguments = tuple(map(bound, launch["arguments"]))
        shape = tuple(launch["groups"]), tuple(launch["items"]), int(launch["local_bytes"])
        yield _Launch(code, str(launch["kernel"]), *shape, arguments)


def _codes(kind: str, sources: Iterable[str], processor: Processor) -> tuple[_Code, ...]:
    """Return what a driver is given of each source: OpenCL's the text, and CUDA's machine code."""
    if kind == "cuda":
        arch = str(processor.target["arch"])
        compiler = cuda.Nvrtc(arch)
        return tuple(_Code(compiler.compile(source)[0], arch) for source in sources)
    return tuple(_Code(f"{source}\0".encode(), _build_options(source)) for source in sources)


def _build_options(source: str) -> str:
    return " ".join(line.split(_OPTIONS)[1].strip() for line in source.splitlines() if _OPTIONS in line)


def _bound(held: Sequence[int], scratch: Sequence[int], argument: Any) -> int | tuple[str, Any]:
    kind, value = argument
    if kind == "argument":
        return held[value]
    return scratch[value] if kind == "workspace" else (str(kind), value)


def _argument(argument: int | tuple[str, Any]) -> str:
    if isinstance(argument, int):
        return f"{argument}, 0, 0"
    dtype, number = argument
    data = np.dtype(dtype).type(number).tobytes()
    return f"-1, {len(data)}, {int.from_bytes(data, 'little')}u"


def _table(ctype: str, name: str, rows: Iterable[str]) -> Iterator[str]:
    """Yield the definition of a constant array of structures. An empty one gets a row of zeros."""
    yield f"static const {ctype} {name}[] = {{"
    yield from [f"  {{{row}}}," for row in rows] or ["  {0},"]
    yield "};"


def _triple(numbers: Iterable[int]) -> str:
    return "{" + ", ".join(f"{n}u" for n in numbers) + "}"
