"""Reports what changes on a board, line by line, and repeats what stays only now and then. Start at `Notices`."""

from __future__ import annotations

import time
from collections.abc import Callable

_SECONDS = 30.0  # between lines that say the same


class Notices:
    """Tells `notice` lines about one board."""

    def __init__(self, notice: Callable[[str], object]) -> None:
        self._notice = notice
        self._said, self._when = "", 0.0

    def tell(self, text: str) -> None:
        """Report a line. One that has not changed is reported again only after _SECONDS."""
        if text != self._said or time.monotonic() - self._when >= _SECONDS:
            self._said, self._when = text, time.monotonic()
            self._notice(text)

    def end(self) -> bool:
        """Forget what was said, and return whether anything was."""
        said, self._said = self._said, ""
        return bool(said)
