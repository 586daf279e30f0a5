"""Defines `Precision`, which says in which precision a network's operator is computed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Precision:
    """Says in which precision an anchor of a quantised network is computed, and why.

    `integers` and `floats` are the seconds of its kernel in integers and in float32, and `conversions` those of the
    conversions around it that computing it in float32 adds (less than 0 if it saves some). They are None where there
    was nothing to compare. `source` is "measured" if both kernels were, "estimated", "file" for what can only be
    computed as the file says, or "given" for a choice that was made before.
    """

    node: str
    in_float: bool
    why: str
    source: str
    integers: float | None = None
    floats: float | None = None
    conversions: float | None = None
