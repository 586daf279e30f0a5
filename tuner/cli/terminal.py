"""Where text meets a terminal: `console`. Names of models, operators and devices are anybody's text: none of it is
markup, and no character of it is an order to the terminal."""

from __future__ import annotations

import re
from typing import IO, Any

from rich.console import Console
from rich.text import Text

WIDTH_OF_A_FILE = 140  # tables that go to a file or a pipe are not squeezed into 80 columns

# Control characters but tab and newline, those that turn the text around them or are not seen, and halves of pairs,
# which no stream can encode. The report's page has the same list.
_UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")


def visible(text: str) -> str:
    r"""With what cannot be seen, or steers a terminal, written out: "\u001b"."""
    return _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class _Console(Console):
    """Whatever it is given as a string, cells of tables among them, is shown as it is."""

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(visible(text), **options)


def console(stream: IO[str]) -> Console:
    """As wide as the terminal, in colour on one alone; styles are given as rich.text.Text."""
    return _Console(file=stream, width=None if stream.isatty() else WIDTH_OF_A_FILE, markup=False, emoji=False)
