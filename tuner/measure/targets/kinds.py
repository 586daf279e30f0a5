"""Defines the kinds of operands that a kernel is checked with: one kind as networks have them, and others that find
mistakes which the first one hides. Start at `anchor_kinds`.

A convolution or a dense layer is linear up to its epilogue. So one float64 reference, computed once, serves operands of
every size: if the data are multiplied by a power of two, so are the sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from templates.bfloats import BFLOAT16
from templates.epilogue import parse
from templates.integers import INTEGERS
from templates.reference import Operands, random_operands
from tuning_db.record import Workload

PLAIN, SPARSE, NAN, FULL, FRESH = "plain", "sparse", "nan", "full", "fresh"
_NANS = 3  # values that are NaN, or all values if there are fewer
_SCALES_WITH_ITS_INPUT = frozenset({"bias", "add", "relu", "leaky_relu"})


@dataclass(frozen=True)
class Kind:
    """A kind of operands that a kernel is checked with. `factor` multiplies the data and the epilogue's operands;
    `others`, where it is given, multiplies the latter instead. `slack` multiplies the tolerance, where the numbers have
    fewer digits or the epilogue makes small differences larger. `base` names the random operands, see
    `anchor_operands`. `poisoned` means that the outputs are overwritten before the call, so that what is left of the
    last call is no result."""

    name: str
    factor: float = 1.0
    others: float | None = None
    slack: float = 1.0
    base: str = PLAIN
    poisoned: bool = True


NORMAL = Kind("normal")


def anchor_kinds(epilogue: Sequence[str], dtype: str, denormals: bool, seed: int) -> tuple[Kind, ...]:
    """Return all kinds for a convolution or a dense layer, in the order in which a kernel is called with them.
    `denormals` says whether the device keeps denormal numbers. `seed` decides the factor of the kind "small"."""
    if dtype == INTEGERS:
        return NORMAL, Kind(FULL, base=FULL), Kind("zero", base=SPARSE), Kind(FRESH, base=FRESH, poisoned=False)
    half = dtype == "float16"
    scales = all(parse(text)[0] in _SCALES_WITH_ITS_INPUT for text in epilogue)
    large = 1024.0 if scales and not half else 32.0
    small = -(2.0 ** -float(np.random.default_rng(seed).integers(*((3, 7) if half else (12, 31)))))
    kinds = [NORMAL, Kind("large", large, slack=1.0 if scales else large)]
    if denormals and dtype != BFLOAT16:  # the instructions for it take denormal numbers for zero
        factor, slack = (2.0**-17, 50.0) if half else (2.0**-130, 100.0)
        kinds.append(Kind("denormal", factor, slack=slack, base=SPARSE))
    kinds += [Kind("zero", 0.0, others=1.0), Kind(NAN, base=NAN)]
    # "small" comes last and does not overwrite the outputs first: a kernel that stopped working would leave the results
    # of another kind there.
    return (*kinds, Kind("small", small, poisoned=False))


def anchor_operands(workload: Workload, seed: int) -> dict[str, Operands]:
    """Return the random operands by the `base` of kinds; all of them have the same weight. Those of "nan" come from
    another seed, and some of their data are NaN. In "sparse" all data are zero but one value, which is in the last
    image. Integers have, beside others of the whole range, data that all have the largest value ("full")."""
    plain, fresh = random_operands(workload, seed), random_operands(workload, seed + 1)
    if workload.dtype == INTEGERS:
        return {
            PLAIN: plain,
            FULL: replace(plain, data=np.full_like(plain.data, np.iinfo(plain.data.dtype).max)),
            SPARSE: replace(plain, data=np.zeros_like(plain.data)),
            FRESH: replace(fresh, weight=plain.weight),
        }
    spoiled = fresh.data.copy()
    places = np.random.default_rng(seed).integers(0, max(1, spoiled.size), min(_NANS, spoiled.size))
    spoiled.reshape(-1)[places] = np.nan
    # A processor takes a hundred times as long for a denormal number, so there is only one. It is among the last values
    # that a kernel comes to, and so are the sums that become denormal with it.
    sparse = np.zeros_like(plain.data)
    sparse[-1:, -1:, *(slice(size // 2, size // 2 + 1) for size in sparse.shape[2:])] = 1.0
    return {
        PLAIN: plain,
        SPARSE: replace(plain, data=sparse),
        NAN: Operands(spoiled, plain.weight, fresh.extra),
    }
