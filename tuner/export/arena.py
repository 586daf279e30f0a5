"""Plan where the values of an inference lie in one piece of memory, the arena. Start at `planned`.

Two values that are not needed at the same time may share bytes. Source: Yury Pisarchyk and Juhyun Lee, "Efficient
Memory Management for Deep Neural Net Inference" (2020), section 5 ("Greedy by Size for Offset Calculation").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

ALIGNMENT = 64  # of every value, in bytes: kernels are compiled for it


@dataclass(frozen=True)
class Block:
    """A piece of memory of `size` bytes that is needed from step `first` to step `last`, both included."""

    size: int
    first: int
    last: int

    def meets(self, other: Block) -> bool:
        """Return whether both are needed at the same step."""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True)
class Arena:
    """Offsets in bytes, one for each block, and the `size` of the memory that holds them all."""

    offsets: tuple[int, ...]
    size: int


def aligned(size: int) -> int:
    """Return a number of bytes rounded up so that what follows is aligned."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def planned(blocks: Sequence[Block]) -> Arena:
    """Return where each block lies, so that blocks that meet do not overlap. The smallest plan of several orders is
    taken."""
    orders: tuple[Callable[[int], tuple[int, ...]], ...] = (
        lambda i: (-blocks[i].size, blocks[i].first, i),
        lambda i: (blocks[i].first, -blocks[i].size, i),
        lambda i: (blocks[i].first - blocks[i].last, -blocks[i].size, i),
    )
    plans = [_placed(blocks, sorted(range(len(blocks)), key=order)) for order in orders]
    return min(plans, key=lambda arena: arena.size)


def most_at_once(blocks: Sequence[Block]) -> int:
    """Return the most bytes that are needed at one step, which no plan can be smaller than."""
    return max((sum(aligned(b.size) for b in blocks if b.first <= at.first <= b.last) for at in blocks), default=0)


def shared(blocks: Sequence[Block]) -> list[int]:
    """Return a number for each block, so that blocks that meet have different ones. Blocks of one number may be one
    piece of memory, as large as the largest of them: "Greedy by Size for Shared Objects", section 4 there."""
    numbers, held = [0] * len(blocks), list[list[int]]()
    for i in sorted(range(len(blocks)), key=lambda i: (-blocks[i].size, blocks[i].first, i)):
        free = (n for n, others in enumerate(held) if not any(blocks[j].meets(blocks[i]) for j in others))
        numbers[i] = next(free, len(held))
        if numbers[i] == len(held):
            held.append([])
        held[numbers[i]].append(i)
    return numbers


def _placed(blocks: Sequence[Block], order: Sequence[int]) -> Arena:
    """Place one block after the other, each at the lowest offset where it fits."""
    offsets = [0] * len(blocks)
    held: list[int] = []
    for i in order:
        taken = sorted((offsets[j], offsets[j] + aligned(blocks[j].size)) for j in held if blocks[j].meets(blocks[i]))
        at = 0
        for begin, end in taken:
            if begin - at >= aligned(blocks[i].size):
                break
            at = max(at, end)
        offsets[i] = at
        held.append(i)
    size = max((offset + aligned(block.size) for offset, block in zip(offsets, blocks, strict=True)), default=0)
    return Arena(tuple(offsets), size)
