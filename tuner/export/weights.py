"""Write the file of weights of an export. Start at `weights_of`.

It is a header of 64 bytes, as runtime/network.inc has it, and all constants, each at a multiple of 64 bytes.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from tuner.export.arena import aligned

_MAGIC, _FORMAT = b"EDGETUNE", 1
_HEADER = struct.Struct("<8sIIQ16sQQQ")


@dataclass(frozen=True)
class Weights:
    """The bytes of a file of weights, and the 16 bytes by which the library knows it."""

    content: bytes
    identity: bytes


def weights_of(arrays: Iterable[np.ndarray], network: str) -> Weights:
    """Return the file for the constants of a network, which are little-endian. `network` is the text that describes it:
    other weights, or another network, have another identity."""
    data = b"".join(_padded(np.ascontiguousarray(array)) for array in arrays)
    identity = hashlib.sha256(network.encode() + data).digest()[:16]
    words = np.frombuffer(data, "<u8")
    placed = words * np.arange(1, len(words) + 1, dtype=np.uint64)
    sums = (int(s.sum(dtype=np.uint64)) for s in (words, placed))
    header = _HEADER.pack(_MAGIC, _FORMAT, 0, _HEADER.size + len(data), identity, *sums, 0)
    return Weights(header + data, identity)


def _padded(array: np.ndarray) -> bytes:
    content = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
    return content.ljust(aligned(len(content)), b"\0")
