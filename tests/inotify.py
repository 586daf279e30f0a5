"""What happens to files that were there before: `Watched` asks the kernel (inotify(7))."""

from __future__ import annotations

import ctypes
import os
import struct
from pathlib import Path
from typing import Self

_MODIFY, _ATTRIBUTES, _MOVED_FROM, _DELETE = 0x2, 0x4, 0x40, 0x200
_NAMES = {_MODIFY: "modified", _ATTRIBUTES: "changed in its rights", _MOVED_FROM: "moved", _DELETE: "deleted"}
_NONBLOCK = 0x800
_EVENT = struct.Struct("iIII")
_libc = ctypes.CDLL(None, use_errno=True)


class Watched:
    """Watches all files that are under some folders now. A context manager; `found` tells what was done to them."""

    def __init__(self, *folders: Path) -> None:
        self._inotify = _libc.inotify_init1(_NONBLOCK)
        assert self._inotify >= 0, os.strerror(ctypes.get_errno())
        self._places: dict[int, Path] = {}
        self._there = {path for folder in folders for path in (folder, *folder.rglob("*"))}
        for path in sorted(self._there):
            if path.is_dir():
                number = _libc.inotify_add_watch(self._inotify, str(path).encode(), sum(_NAMES))
                assert number >= 0, os.strerror(ctypes.get_errno())
                self._places[number] = path

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._inotify)

    def found(self) -> set[tuple[Path, str]]:
        """Return what was done until now to files that were there at the beginning."""
        seen = set()
        while True:
            try:
                data = os.read(self._inotify, 1 << 20)
            except BlockingIOError:
                return seen
            while data:
                number, mask, _, length = _EVENT.unpack_from(data)
                name = data[_EVENT.size : _EVENT.size + length].rstrip(b"\0").decode()
                data = data[_EVENT.size + length :]
                path = self._places[number] / name if name else self._places.get(number)
                for bit, what in _NAMES.items():
                    if mask & bit and path in self._there:
                        seen.add((path, what))
