"""Describe the inputs and outputs of a network: `TensorInfo`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Count:
    """Says how many entries of an output along `axis` are valid: the number is the only value of the result with the
    index `result`."""

    axis: int
    result: int


@dataclass(frozen=True)
class TensorInfo:
    """The name, static shape and dtype that an input or output of a network has.

    If an output has a `count`, its number of entries depends on the values, and `shape` is the largest it can have. If
    an input has `below`, its integers each choose one of that many entries, so they are less than `below`.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    count: Count | None = None
    below: int | None = None

    def entries(self, index: int, results: Sequence[np.ndarray]) -> np.ndarray:
        """Return the valid entries of this output, which is `results[index]`."""
        if self.count is None:
            return results[index]
        length = int(results[self.count.result].reshape(-1)[0])
        return results[index][(slice(None),) * self.count.axis + (slice(length),)]
