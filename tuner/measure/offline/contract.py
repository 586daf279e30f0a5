"""Defines what an offline compiler is: it takes source and returns what each kernel takes of the device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Resources:
    """The resources that a kernel takes, as far as its compiler says (None where it does not).

    `registers` are counted per work-item (CUDA), or per hardware thread of `subgroup` items (Intel). `spill_bytes` are
    those of registers that did not fit and that each work-item stores in memory. `private_bytes` is the memory of a
    work-item, with room for these. `local_bytes` is the local memory of a group.
    """

    registers: int | None = None
    spill_bytes: int | None = None
    private_bytes: int | None = None
    local_bytes: int | None = None
    subgroup: int | None = None
    binary_bytes: int | None = None


class Compiler(Protocol):
    """A compiler that compiles for one device. Making it raises BadInput, with what to install, where it is missing."""

    name: str

    def compile(self, source: str) -> Mapping[str, Resources]:
        """Compile the text of one or more kernels. Return what each kernel takes, by name; kernels without figures may
        be left out. Raises CompileError."""
        ...
