"""Changes of bytes and of JSON values: what damage, another program, or malice make of a file."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

Place = tuple[Any, Any]  # a list or dictionary, and an index or key of it

_STRANGE: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 255, 2**31, -(2**31) - 1, 2**63, -(2**63) - 1, 10**40, 0.5, -0.0, 1e308, 5e-324,
    float("nan"), float("inf"), "", "x", "float32", "../x", "/etc/passwd", "\0", "\ud800", "é" * 50, "9" * 5000,
    "1970-01-01T00:00:00", "9999-12-31T23:59:59+00:00", [], {}, [[]], [0] * 1000, {"": None}, [None], ["x"], {"x": 1},
)  # fmt: skip
_BYTES = (b"\x00", b"\xff", b"\x7f", b"\x80", b"\n", b"{", b"}", b"[", b'"', b"\xef\xbb\xbf", b"\xff\xff\xff\xff")


def bytes_mutated(data: bytes, rng: random.Random) -> bytes:
    """Some bytes changed, left out, inserted or repeated, or the end cut off."""
    made = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        if not made:
            break
        at = rng.randrange(len(made))
        way = rng.randrange(7)
        if way == 0:
            made[at] ^= 1 << rng.randrange(8)
        elif way == 1:
            made[at] = rng.randrange(256)
        elif way == 2:
            del made[at : at + rng.choice((1, 2, 4, 64, 1024))]
        elif way == 3:
            made[at:at] = rng.choice(_BYTES)
        elif way == 4:
            made[at:at] = made[at : at + rng.choice((1, 8, 256))]
        elif way == 5:
            del made[at:]
        else:
            width = rng.choice((1, 2, 4, 8))
            made[at : at + width] = rng.choice((0, 1, 2**7, 2**15, 2**31 - 1, 2**63)).to_bytes(16, "little")[:width]
    return bytes(made)


def json_mutated(value: Any, rng: random.Random) -> Any:
    """A copy with some values replaced, left out, moved, repeated or nested."""
    made = [copy.deepcopy(value)]
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        places = list(_places(made))
        inside, key = rng.choice(places)
        way = rng.randrange(8)
        if way <= 2:
            inside[key] = copy.deepcopy(rng.choice(_STRANGE))
        elif way == 3 and inside is not made:
            del inside[key]
        elif way == 4:
            inside[key] = copy.deepcopy(_at(rng.choice(places)))
        elif way == 5 and isinstance(inside, list):
            inside.insert(key, copy.deepcopy(inside[key]))
        elif way == 6:
            inside[key] = _nested(inside[key], rng.choice((1, 2, 50)))
        elif way == 7 and isinstance(inside, dict):
            inside[rng.choice(("", "x", "__class__", "name", "shape"))] = inside.pop(key)
    return made[0]


def text_of(value: Any) -> str:
    """Its JSON, with what JSON has not, as Python writes it."""
    return json.dumps(value)


def json_text_mutated(text: str, rng: random.Random) -> bytes:
    """A JSON text changed as a value, mostly, or as bytes."""
    if rng.random() < 0.7:
        return text_of(json_mutated(json.loads(text), rng)).encode(errors="surrogatepass")
    return bytes_mutated(text.encode(), rng)


def _places(value: Any) -> list[Place]:
    found: list[Place] = []
    waiting = [value]
    while waiting:
        inside = waiting.pop()
        for key in list(inside) if isinstance(inside, dict) else range(len(inside)):
            found.append((inside, key))
            if isinstance(inside[key], dict | list):
                waiting.append(inside[key])
    return found


def _at(place: Place) -> Any:
    inside, key = place
    return inside[key]


def _nested(value: Any, levels: int) -> Any:
    for _ in range(levels):
        value = [value]
    return value
