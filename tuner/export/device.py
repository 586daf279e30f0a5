"""Write the tables of a network's launches on a device that is not the host: OpenCL's or CUDA's. Start at
`device_tables`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, chain
from typing import Any

import numpy as np

from templates.gpu.opencl_text import build_options
from tuner.devices import cuda, flush_every
from tuner.export.layout import HOST, Layout
from tuner.export.text import literal, literal_lines
from tuner.graph import COPY, Program
from tuner.module.manifest import Processor

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


@dataclass
class _Plan:
    """The launches of all calls, and in which order they run: `groups` of launches, `stages` of groups that run at the
    same time, and `spans` of stages that follow each other without the host between them. Each of these is the first
    row of the table of its parts, and how many there are. `begins` has the span that begins with a call, by call."""

    launches: list[_Launch] = field(default_factory=list)
    groups: list[tuple[int, int]] = field(default_factory=list)
    stages: list[tuple[int, int]] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)
    begins: dict[int, int] = field(default_factory=dict)
    _span: int | None = None  # the first stage of the present span

    @property
    def most_groups(self) -> int:
        """Return how many groups the largest stage has."""
        return max((count for _, count in self.stages), default=0)

    def add(self, call: int, groups: Iterable[Sequence[_Launch]]) -> None:
        """Add the launches of the groups of a stage, or of one call, which begin with a `call`. Groups without launches
        are left out."""
        made = [group for group in groups if group]
        if made and self._span is None:
            self._span = len(self.stages)
            self.begins[call] = len(self.spans)
        if len(made) == 1 and self.stages[self._span :] and self.stages[-1][1] == 1:
            first, count = self.groups[-1]
            self.groups[-1] = first, count + len(made[0])
        elif made:
            self.stages.append((len(self.groups), len(made)))
            self.groups += zip(accumulate(map(len, made[:-1]), initial=len(self.launches)), map(len, made), strict=True)
        self.launches += chain.from_iterable(made)

    def end(self) -> None:
        """End the present span, if there is one."""
        if self._span is not None:
            self.spans.append((self._span, len(self.stages) - self._span))
            self._span = None


@dataclass(frozen=True)
class DeviceTables:
    """The codes of all kernels of a `kind` of device, and the launches of all calls by a `plan`."""

    kind: str
    layout: Layout
    codes: tuple[_Code, ...]
    plan: _Plan
    flush_every: int

    def lines(self) -> Iterator[str]:
        """Yield the tables in C, as runtime/device.h has them."""
        for i, code in enumerate(self.codes):
            yield f"static const _Alignas(64) unsigned char code_{i}[] ="
            yield f"{literal_lines(code.content)};"
        codes = (f"code_{i}, {len(code.content)}u, {literal(code.options)}" for i, code in enumerate(self.codes))
        buffers = [f"{b.offset}u, {b.size}u, {int(b.constant)}" for b in self.layout.device.buffers]
        plan = self.plan
        arguments = [_argument(argument) for launch in plan.launches for argument in launch.arguments]
        yield from _table("Code", "codes", codes)
        yield from _table("Buffer", "buffers", buffers)
        yield from _table("Argument", "arguments", arguments)
        yield from _table("Launch", "launches", self._launches())
        for name, rows in (("groups", plan.groups), ("stages", plan.stages), ("spans", plan.spans)):
            yield from _table("Rows", name, (f"{first}, {count}" for first, count in rows))
        yield "static const DeviceTables device_tables = {"
        yield f"    codes, {len(self.codes)}, buffers, {len(buffers)}, arguments, {len(arguments)},"
        yield f"    launches, {len(plan.launches)}, groups, stages, {plan.most_groups}, spans, {len(plan.spans)},"
        yield f"    {self.flush_every},"
        yield "};"

    def _launches(self) -> Iterator[str]:
        first = 0
        for launch in self.plan.launches:
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
    sources, plan = dict[str, int](), _Plan()

    def launched(at: int) -> Iterator[_Launch]:
        """Yield the launches of a call."""
        call = program.calls[at]
        described = program.launches[call.function]
        code = sources.setdefault(str(described["source"]), len(sources))
        held = [layout.values[operand].index for operand in call.operands]
        yield from _launched(described["launches"], code, partial(_bound, held, layout.device.scratch[at]))

    for groups in program.groups():
        at = groups[0].start
        call = program.calls[at]
        if call.function == COPY or program.values[call.operands[-1]].device == host:
            plan.end()
        else:
            plan.add(at, [[launch for i in group for launch in launched(i)] for group in groups])
    plan.end()
    return DeviceTables(kind, layout, _codes(kind, sources, processor), plan, flush_every(str(processor.key["family"])))


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
    return tuple(_Code(f"{source}\0".encode(), " ".join(build_options(source))) for source in sources)


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
