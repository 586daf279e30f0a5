"""What an offline compiler is: source in, what each kernel takes of the device out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Resources:
    """What a kernel takes, as far as its compiler says (None: it does not).

    `registers`: per work-item (CUDA), or per hardware thread of `subgroup` items (Intel). `spill_bytes`: of registers
    that did not fit, stored by each work-item. `private_bytes`: memory of a work-item, with room for these.
    `local_bytes`: per group.
    """

    registers: int | None = None
    spill_bytes: int | None = None
    private_bytes: int | None = None
    local_bytes: int | None = None
    subgroup: int | None = None
    binary_bytes: int | None = None


class Compiler(Protocol):
    """One compiler for one device. Raises BadInput when made, with what to install, where it is missing."""

    name: str

    def compile(self, source: str) -> Mapping[str, Resources]:
        """Compile the text of one or more kernels; what each takes, by name (kernels without figures may be left
        out). Raises CompileError."""
        ...
