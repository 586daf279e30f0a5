"""For mkdocs: the page of options is written by the commands themselves."""

from __future__ import annotations

from typing import Any

MARK = "<!-- every option -->"


def on_page_markdown(markdown: str, **_: Any) -> str:
    if MARK not in markdown:
        return markdown
    from tuner.cli.reference import reference

    return markdown.replace(MARK, reference())
