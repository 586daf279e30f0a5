"""Prints text safely to a terminal. Start at `console`.

Names of models, operators and devices may hold any text. None of it is treated as markup, and none of its characters
controls the terminal.
"""

from __future__ import annotations

import re
from typing import IO, Any

from rich.console import Console
from rich.text import Text

WIDTH_OF_A_FILE = 140  # tables that go to a file or a pipe are not squeezed into 80 columns

# These are control characters except tab and newline, characters that are invisible or change the direction of text,
# and lone surrogates, which no stream can encode. The report's page has the same list without surrogates (1_base.js).
_UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")


def visible(text: str) -> str:
    r"""Return `text` with invisible and control characters written as escapes, such as "\u001b"."""
    return _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class _Console(Console):
    """A rich console that shows every string literally, also in the cells of tables."""

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(visible(text), **options)


def console(stream: IO[str]) -> Console:
    """Return a console for a stream. Callers give styles as rich.text.Text.

    On a terminal it is as wide as the terminal and has colours. Elsewhere it has WIDTH_OF_A_FILE columns and none.
    """
    return _Console(file=stream, width=None if stream.isatty() else WIDTH_OF_A_FILE, markup=False, emoji=False)
