"""How many products a CPU adds up in half precision before the sum is added to one in float32. Start at `parts_of`.

A register holds twice as many halves as float32 values, so that a CPU multiplies and adds twice as fast. But each sum
is rounded to 11 bits. So only a part of the terms is added up in halves, and the sums of the parts in float32. Widening
takes two conversions, two additions and, as twice the sums do not fit into registers, loads and stores: 7 % of the time
for parts of 144 terms, by llvm-mca's figures for Neoverse N1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import te

from templates.blocking import divisors
from templates.stages import widened

MOST_TERMS = 160  # that are added up in half precision: random ones are off by up to 5e-3 of the largest result
_FEW_TERMS = 24  # so few are added up in less time than widening takes
_KEPT = 3  # sizes of parts worth trying


def parts_of(terms: int, most: int) -> tuple[int, ...]:
    """Return the numbers of terms that a part may have: divisors of `terms`, the largest up to `most` first. The first
    is 0, which means that all terms are one part, if so many may be."""
    whole = (0,) if terms <= most else ()
    sizes = sorted((d for d in divisors(terms, most) if d < terms), reverse=True)
    few = [d for d in sizes if d * MOST_TERMS >= _FEW_TERMS * most]
    return (*whole, *(few[:_KEPT] or ([] if whole else sizes[:1])))


def summed_in_parts(shape: Sequence[int], terms: int, term: Callable[..., Any], *, part: int = 0) -> te.Tensor:
    """Return the stage "sums" of a shape, whose values are the sums of term(k, *index) for k below `terms`. If `part`
    is not 0, a stage "part" sums each `part` terms in the terms' type, and "sums" is float32."""
    if not part:
        k = te.reduce_axis((0, terms), "k")
        return te.compute(shape, lambda *index: te.sum(term(k, *index), axis=k), name="sums")
    k, step = te.reduce_axis((0, part), "k"), te.reduce_axis((0, terms // part), "step")
    parts = te.compute(
        (terms // part, *shape), lambda s, *index: te.sum(term(s * part + k, *index), axis=k), name="part"
    )
    return te.compute(shape, lambda *index: te.sum(widened(parts[step, *index]), axis=step), name="sums")
