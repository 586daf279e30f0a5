"""The kinds of operands that a kernel is checked with: one set as networks have them, and others that find mistakes
which that one hides. Start at `anchor_kinds`.

A convolution or a dense layer is linear up to its epilogue. So one float64 reference, computed once, serves operands of
every size: data times a power of two give the same sums times it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from templates.epilogue import parse
from templates.reference import Operands, random_operands
from tuning_db.record import Workload

PLAIN, SPARSE, NAN = "plain", "sparse", "nan"
_NANS = 3  # of them, or of so few values all
_SCALES_WITH_ITS_INPUT = frozenset({"bias", "add", "relu", "leaky_relu"})


@dataclass(frozen=True)
class Kind:
    """One kind of operands. `factor`: what data and the epilogue's operands are multiplied by (`others`: the latter,
    where it is another); `slack`: how many times the tolerance the error may be, as the numbers have fewer digits, or
    the epilogue makes small differences larger. `base`: which random operands, see `anchor_operands`. `poisoned`: the
    outputs are filled before the call, so that what is left of the last call is no result."""

    name: str
    factor: float = 1.0
    others: float | None = None
    slack: float = 1.0
    base: str = PLAIN
    poisoned: bool = True


NORMAL = Kind("normal")


def anchor_kinds(epilogue: Sequence[str], dtype: str, denormals: bool, seed: int) -> tuple[Kind, ...]:
    """All kinds for a convolution or a dense layer, in the order in which a kernel is called with them. `denormals`:
    whether the device keeps them; `seed`: of the size of the smallest normal ones."""
    half = dtype == "float16"
    scales = all(parse(text)[0] in _SCALES_WITH_ITS_INPUT for text in epilogue)
    large = 1024.0 if scales and not half else 32.0
    small = -(2.0 ** -float(np.random.default_rng(seed).integers(*((3, 7) if half else (12, 31)))))
    kinds = [NORMAL, Kind("large", large, slack=1.0 if scales else large)]
    if denormals:
        factor, slack = (2.0**-17, 50.0) if half else (2.0**-130, 100.0)
        kinds.append(Kind("denormal", factor, slack=slack, base=SPARSE))
    kinds += [Kind("zero", 0.0, others=1.0), Kind(NAN, base=NAN)]
    # Last, and over the results of others: a kernel that does nothing any more would leave those.
    return (*kinds, Kind("small", small, poisoned=False))


def anchor_operands(workload: Workload, seed: int) -> dict[str, Operands]:
    """The random operands by the `base` of kinds: one weight for all. Of another seed some are NaN ("nan"); in one
    image all data but one value are zero ("sparse")."""
    plain, fresh = random_operands(workload, seed), random_operands(workload, seed + 1)
    spoiled = fresh.data.copy()
    places = np.random.default_rng(seed).integers(0, max(1, spoiled.size), min(_NANS, spoiled.size))
    spoiled.reshape(-1)[places] = np.nan
    # A processor takes a hundred times as long for a denormal number. This one, and the sums that it makes denormal,
    # are among the last that a kernel comes to.
    sparse = np.zeros_like(plain.data)
    sparse[-1:, -1:, *(slice(size // 2, size // 2 + 1) for size in sparse.shape[2:])] = 1.0
    return {
        PLAIN: plain,
        SPARSE: replace(plain, data=sparse),
        NAN: Operands(spoiled, plain.weight, fresh.extra),
    }
