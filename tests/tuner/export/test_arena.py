"""Plans of memory: what is needed at the same time does not overlap, and little room is lost."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from tuner.export.arena import ALIGNMENT, Block, aligned, most_at_once, planned

BLOCKS = st.lists(
    st.builds(
        lambda size, first, length: Block(size, first, first + length),
        st.integers(0, 1 << 16),
        st.integers(0, 30),
        st.integers(0, 12),
    ),
    max_size=40,
)


@given(BLOCKS)
def test_blocks_that_meet_do_not_overlap(blocks: list[Block]) -> None:
    arena = planned(blocks)
    spans = [(at, at + aligned(b.size)) for at, b in zip(arena.offsets, blocks, strict=True)]
    assert all(at % ALIGNMENT == 0 and 0 <= at <= end <= arena.size for at, end in spans)
    for i, (begin, end) in enumerate(spans):
        for j, (other_begin, other_end) in enumerate(spans[:i]):
            assert not blocks[i].meets(blocks[j]) or end <= other_begin or other_end <= begin
    assert arena.size >= most_at_once(blocks)


def test_a_chain_needs_its_two_largest_neighbours() -> None:
    sizes = [640, 6400, 1280, 64, 3200]
    chain = [Block(size, at, at + 1) for at, size in enumerate(sizes)]
    assert planned(chain).size == most_at_once(chain) == 6400 + 1280


def test_nothing_needs_nothing() -> None:
    assert planned([]).size == most_at_once([]) == 0
    assert planned([Block(1, 0, 0)]).size == ALIGNMENT
