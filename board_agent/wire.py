"""This module sends and receives the frames of the protocol between host and board: start at `send` and `receive`.

A frame carries a JSON object and binary parts that the object describes. It consists of MAGIC, the length of the
object, the number of parts, the length of each part, the object, and the parts. All numbers are big-endian. A frame
that does not have this form, or exceeds the limits, is refused before memory is allocated for it.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Any, Dict, List, Tuple

from board_agent.parsing import parse_json

MAGIC = b"edt1"
VERSION = 3  # of the requests; a board's first frame tells it
OBJECT_BYTES = 1 << 20
PARTS = 256
_HEAD = struct.Struct(">4sII")
_LENGTH = struct.Struct(">Q")
_PIECE = 1 << 16  # bytes sent or received at a time, so that a time limit applies to a piece, not to a whole frame

Frame = Tuple[Dict[str, Any], List[bytes]]


class WireError(Exception):
    """Raised when the peer sent something that is no frame, or when a frame exceeds the limits."""


class Gone(Exception):
    """Raised when the peer closed the connection, or the connection was cut."""


def send(connection: Any, message: dict[str, Any], parts: Sequence[Any] = ()) -> None:
    """Send one frame through a connected socket. `parts` are bytes or contiguous arrays.

    Raises Gone if the connection is closed, and WireError if the frame exceeds what a peer accepts.
    """
    text = json.dumps(message, allow_nan=True).encode()
    views = [memoryview(part).cast("B") if len(memoryview(part)) else memoryview(b"") for part in parts]
    if len(text) > OBJECT_BYTES or len(views) > PARTS:
        raise WireError(f"a message of {len(text)} bytes with {len(views)} parts is too large")
    head = _HEAD.pack(MAGIC, len(text), len(views)) + b"".join(_LENGTH.pack(view.nbytes) for view in views)
    try:
        connection.sendall(head + text)
        for view in views:
            for start in range(0, view.nbytes, _PIECE):
                connection.sendall(view[start : start + _PIECE])
    except OSError as error:
        raise Gone(str(error)) from error


def receive(connection: Any, most_bytes: int) -> Frame:
    """Return the next frame, whose parts together may have up to `most_bytes`.

    Raises Gone at the end of the stream, and WireError for data that is no frame. After either error nothing more can
    be read from the connection.
    """
    magic, length, count = _HEAD.unpack(_exactly(connection, _HEAD.size))
    if magic != MAGIC:
        raise WireError("this is not the protocol of a board's agent, or another version of it")
    if length > OBJECT_BYTES or count > PARTS:
        raise WireError(f"a message of {length} bytes with {count} parts is too large")
    sizes = [_LENGTH.unpack(_exactly(connection, _LENGTH.size))[0] for _ in range(count)]
    if sum(sizes) > most_bytes:
        raise WireError(f"parts of {sum(sizes)} bytes are too large: {most_bytes} are accepted")
    try:
        message = parse_json(_exactly(connection, length).decode())
    except ValueError as error:
        raise WireError(f"the message is not JSON: {error}") from error
    if not isinstance(message, dict):
        raise WireError("the message is not a JSON object")
    return message, [_exactly(connection, size) for size in sizes]


def _exactly(connection: Any, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        try:
            piece = connection.recv(min(_PIECE, size - len(data)))
        except OSError as error:
            raise Gone(str(error)) from error
        if not piece:
            raise Gone("the connection was closed")
        data += piece
    return bytes(data)
