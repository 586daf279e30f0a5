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
from templates.direct import DirectProblem
from templates.space import Constraint
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


def rows_in_halves(problem: DirectProblem) -> tuple[int, ...]:
    """Return the numbers of kernel rows, counted over all input blocks, whose products a direct convolution may sum in
    half precision: those of whole input blocks, or numbers that divide those of one. They are as `parts_of` returns
    them."""
    most = max(1, MOST_TERMS // (problem.conv.kernel[1] * problem.blocks.in_lanes))
    high = problem.conv.kernel[0]
    return tuple(n for n in parts_of(problem.kernel_rows, most) if n % high == 0 or high % n == 0)


def row_constraints(problem: DirectProblem) -> tuple[Constraint, ...]:
    """Return the constraints between a direct convolution's knob `sums`, whose values are `rows_in_halves`, and its
    other knobs."""
    high, first = problem.conv.kernel[0], rows_in_halves(problem)[0]
    terms = problem.blocks.in_lanes * high * problem.conv.kernel[1]
    return (
        Constraint("a chunk has too many terms for halves", lambda v: v["chunk"] * terms <= MOST_TERMS),
        Constraint("the sums of a chunk are widened as a whole", lambda v: not v["chunk"] or v["sums"] == first),
        Constraint("rows are skipped in whole blocks", lambda v: not (v["skip"] and v["sums"] % high)),
        Constraint("weights are fetched in whole blocks", lambda v: not (v["prefetch"] and v["sums"] % high)),
    )
