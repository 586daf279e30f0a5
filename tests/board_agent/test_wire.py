"""Frames: what is sent arrives, and whatever else arrives is refused in one of two ways."""

from __future__ import annotations

import random
import socket
import struct
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from board_agent.wire import MAGIC, OBJECT_BYTES, PARTS, Gone, WireError, receive, send

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


class Stream:
    """A connection that gives bytes in pieces."""

    def __init__(self, data: bytes, piece: int = 1 << 20) -> None:
        self._data, self._piece = memoryview(data), piece

    def recv(self, size: int) -> bytes:
        piece, self._data = self._data[: min(size, self._piece)], self._data[min(size, self._piece) :]
        return bytes(piece)


class Kept:
    def __init__(self) -> None:
        self.data = b""

    def sendall(self, data) -> None:
        self.data += bytes(data)


def framed(message, parts=()) -> bytes:
    kept = Kept()
    send(kept, message, parts)
    return kept.data


@given(st.dictionaries(st.text(), JSON, max_size=5), st.lists(st.binary(max_size=300), max_size=5), st.integers(1, 64))
def test_what_is_sent_arrives_in_whatever_pieces(message, parts, piece) -> None:
    assert receive(Stream(framed(message, parts), piece), 10_000) == (message, parts)


@given(st.lists(st.binary(max_size=50), max_size=3), st.data())
def test_every_truncation_is_the_end_of_the_stream(parts, data) -> None:
    whole = framed({"do": "something"}, parts)
    with pytest.raises(Gone):
        receive(Stream(whole[: data.draw(st.integers(0, len(whole) - 1))]), 10_000)


def test_100_000_malformed_inputs_are_refused_and_take_no_memory() -> None:
    rng = random.Random(7)
    whole = framed({"do": "call", "arguments": [1, 2, 3]}, [b"abcdefgh" * 8])
    kinds = {Gone: 0, WireError: 0, None: 0}
    for _ in range(100_000):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        if rng.random() < 0.2:
            data = bytearray(rng.randbytes(rng.randint(0, 64)))
        try:
            message, parts = receive(Stream(bytes(data)), 1000)
            assert isinstance(message, dict)
            assert sum(map(len, parts)) <= 1000
            kinds[None] += 1
        except (Gone, WireError) as error:
            kinds[type(error)] += 1
    assert all(kinds.values())


@pytest.mark.parametrize(
    ("head", "why"),
    [
        (struct.pack(">4sII", b"HTTP", 2, 0), "not the protocol"),
        (struct.pack(">4sII", MAGIC, OBJECT_BYTES + 1, 0), "too large"),
        (struct.pack(">4sII", MAGIC, 2, PARTS + 1), "too large"),
        (struct.pack(">4sIIQ", MAGIC, 2, 1, 1 << 60), "are accepted"),
        (struct.pack(">4sII", MAGIC, 4, 0) + b"[1]\n", "not a JSON object"),
        (struct.pack(">4sII", MAGIC, 2, 0) + b"\xff\xfe", "not JSON"),
        (struct.pack(">4sII", MAGIC, 100_000, 0) + b"[" * 100_000, "not JSON"),
    ],
)
def test_what_is_no_frame_is_named(head: bytes, why: str) -> None:
    with pytest.raises(WireError, match=why):
        receive(Stream(head), 1 << 20)


def test_a_message_that_no_peer_accepts_is_not_sent() -> None:
    with pytest.raises(WireError, match="too large"):
        framed({"text": "x" * OBJECT_BYTES})


def test_a_peer_that_is_gone_is_gone_to_whoever_sends() -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    with ours, pytest.raises(Gone):
        send(ours, {}, [bytes(8 << 20)])


@settings(max_examples=20)
@given(st.integers(0, 3 << 20))
def test_large_parts_go_through_a_real_socket(size: int) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sender = threading.Thread(target=send, args=(ours, {"n": size}, [bytes(size)]))
        sender.start()
        message, (part,) = receive(theirs, 4 << 20)
        sender.join()
    assert (message["n"], len(part)) == (size, size)
