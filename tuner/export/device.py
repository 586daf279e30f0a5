"""Write the tables of a network's launches on an OpenCL device. Start at `device_tables`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tuner.export.layout import HOST, Layout
from tuner.export.text import literal
from tuner.graph import COPY, Program

_OPTIONS = "// edgetune-build-options:"  # begins the comment with build options in a kernel's source


@dataclass(frozen=True)
class _Launch:
    """A launch of a kernel of the `code`-th source. `arguments` are buffers, or pairs of a dtype and a number."""

    code: int
    kernel: str
    groups: tuple[int, ...]
    items: tuple[int, ...]
    local_bytes: int
    arguments: tuple[int | tuple[str, Any], ...]


@dataclass(frozen=True)
class DeviceTables:
    """The sources of all kernels, and the launches of all calls. `spans` has the first launch of each call that is the
    device's, and how many it has, by call."""

    layout: Layout
    sources: tuple[str, ...]
    launches: tuple[_Launch, ...]
    spans: Mapping[int, tuple[int, int]]
    flush_every: int

    def launched(self, call: int) -> tuple[int, int]:
        """Return the first launch of a call, and how many it has."""
        return self.spans[call]

    def lines(self) -> Iterable[str]:
        """Yield the tables in C, as runtime/opencl.h has them."""
        yield "static const Code codes[] = {"
        for source in self.sources:
            options = " ".join(line.split(_OPTIONS)[1].strip() for line in source.splitlines() if _OPTIONS in line)
            lines = "\n".join(literal(f"{line}\n") for line in source.splitlines())
            yield f"  {{{lines}, {literal(options)}}},"
        yield "};"
        buffers = self.layout.device.buffers
        yield "static const Buffer buffers[] = {"
        yield from (f"  {{{b.offset}u, {b.size}u, {int(b.constant)}}}," for b in buffers)
        yield "};"
        yield from self._launches()
        counts = f"{len(self.sources)}, buffers, {len(buffers)}, arguments, launches, {len(self.launches)}"
        yield "static const DeviceTables device_tables = {"
        yield f"    codes, {counts}, {self.flush_every},"
        yield "};"

    def _launches(self) -> Iterable[str]:
        rows, arguments = list[str](), list[str]()
        for launch in self.launches:
            extents = [g * i for g, i in zip(launch.groups, launch.items, strict=True)]
            shape = f"{_triple(extents)}, {_triple(launch.items)}, {launch.local_bytes}u"
            span = f"{len(arguments)}, {len(launch.arguments)}"
            rows.append(f"  {{{launch.code}, {literal(launch.kernel)}, {shape}, {span}}},")
            arguments += [_argument(argument) for argument in launch.arguments]
        yield from ("static const Argument arguments[] = {", *(arguments or ["  {-1, 0, 0},"]), "};")
        yield from ("static const Launch launches[] = {", *rows, "};")


def device_tables(program: Program, layout: Layout, flush_every: int) -> DeviceTables | None:
    """Return the tables of the device that is not the host, or None if there is none."""
    if program.devices == (HOST,):
        return None
    host, sources, launches, spans = program.devices.index(HOST), dict[str, int](), list[_Launch](), {}
    for at, call in enumerate(program.calls):
        if call.function == COPY or program.values[call.operands[-1]].device == host:
            continue
        described = program.launches[call.function]
        code, first = sources.setdefault(str(described["source"]), len(sources)), len(launches)
        held = [layout.values[operand].index for operand in call.operands]
        for launch in described["launches"]:
            if 0 in (*launch["groups"], *launch["items"]):
                continue  # it works on an empty tensor
            arguments = tuple(_bound(a, held, layout.device.scratch[at]) for a in launch["arguments"])
            shape = tuple(launch["groups"]), tuple(launch["items"]), int(launch["local_bytes"])
            launches.append(_Launch(code, str(launch["kernel"]), *shape, arguments))
        spans[at] = first, len(launches) - first
    return DeviceTables(layout, tuple(sources), tuple(launches), spans, flush_every)


def _bound(argument: Any, held: list[int], scratch: tuple[int, ...]) -> int | tuple[str, Any]:
    kind, value = argument
    if kind == "argument":
        return held[value]
    return scratch[value] if kind == "workspace" else (str(kind), value)


def _argument(argument: int | tuple[str, Any]) -> str:
    if isinstance(argument, int):
        return f"  {{{argument}, 0, 0}},"
    dtype, number = argument
    data = np.dtype(dtype).type(number).tobytes()
    return f"  {{-1, {len(data)}, {int.from_bytes(data, 'little')}u}},"


def _triple(numbers: Iterable[int]) -> str:
    return "{" + ", ".join(f"{n}u" for n in numbers) + "}"
