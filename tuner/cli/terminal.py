"""Prints text safely to a terminal, and tables that fit it. Start at `console` and `fitted`.

Names of models, operators and devices may hold any text. None of it is treated as markup, and none of its characters
controls the terminal.
"""

from __future__ import annotations

import copy
import re
from typing import IO, Any

from rich.cells import cell_len
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

WIDTH_OF_A_FILE = 140  # tables that go to a file or a pipe are not squeezed into 80 columns

_LEAST_TEXT = 24  # columns of a terminal that a cell of text gets at least; it is folded if it is longer
_LEAST_WORDS = 12  # the same for a cell whose text is wrapped between words, if no word is longer

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


def fitted(table: Table, width: int) -> tuple[Table, list[str]]:
    """Return a table that is at most `width` columns wide, and the titles of what was left out for that.

    The first column is always kept. Of the others, those come first that stand farther left. Numbers are never cut, but
    long text takes several lines.
    """
    left = width - _least(table.columns[0])
    kept, titles = [table.columns[0]], []
    for column in table.columns[1:]:
        if _least(column) <= left:
            left -= _least(column)
            kept.append(column)
        else:
            titles.append(str(column.header))
    if not titles:
        return table, []
    found = copy.copy(table)
    found.columns = kept
    return found, titles


def _least(column: Column) -> int:
    """Return the fewest columns of a terminal that a table's column needs, with the space around it."""
    cells = [str(cell) for cell in (column.header, *column.cells)]
    lines = [line for cell in cells for line in visible(cell).splitlines()]
    longest = max(map(cell_len, lines), default=0)
    if column.no_wrap or column.justify == "right":
        return longest + 2
    if column.overflow == "fold":
        return min(longest, _LEAST_TEXT) + 2
    word = max((cell_len(word) for line in lines for word in line.split()), default=0)
    return min(longest, max(word, _LEAST_WORDS)) + 2
