"""Renders pages as HTML files. Start at `render`, or at `render_quantised` for the page of a quantised network.

The data goes in as JSON, and the page's own script shows it as text only. The content security policy in the page's
head lets no other script run and nothing be loaded. Only a live page may ask its own server.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from tuner.report.page import sections

# The scripts in assets/ that stand before the sections' own, and those behind them.
_BEFORE = ("base", "table", "figures", "charts", "graph", "choices")
_AFTER = ("live", "main")
_QUANTISED = ("base", "table", "figures", "charts", "quantised")
_MARK = re.compile("@([a-z]+)@")
_POLICY = "default-src 'none'; base-uri 'none'; form-action 'none'; {connect}{code}"


def render(data: Mapping[str, Any], live: bool = False) -> str:
    """Return the HTML of the data that `collect` returned. A `live` page asks its server for newer data."""
    assets, own = files(__package__) / "assets", files(sections)
    before, after = ([assets / f"{name}.js" for name in names] for names in (_BEFORE, _AFTER))
    parts = [*before, *(own / f"{name}.js" for name in sections.SECTIONS), *after]
    return _page("page.html", parts, data, connect="connect-src 'self'; " if live else "")


def render_quantised(data: Mapping[str, Any]) -> str:
    """Return the HTML of what `tune quantize --json` prints: how sensitive operators are, and what quality costs."""
    assets = files(__package__) / "assets"
    return _page("quantised.html", [assets / f"{name}.js" for name in _QUANTISED], data)


def _page(name: str, scripts: Sequence[Traversable], data: Mapping[str, Any], connect: str = "") -> str:
    """Return the page of a name in assets/ with its style, its data and its scripts in their order. `connect` is the
    part of its policy that lets it ask somebody."""
    assets = files(__package__) / "assets"
    style = (assets / "style.css").read_text(encoding="utf-8")
    script = "".join(part.read_text(encoding="utf-8") for part in scripts)
    code = f"style-src {_hash(style)}; script-src {_hash(script)}"
    parts = {
        "policy": _POLICY.format(connect=connect, code=code),
        "style": style,
        "data": as_json(data),
        "script": script,
    }
    page = (assets / name).read_text(encoding="utf-8")
    assert sorted(_MARK.findall(page)) == sorted(parts), f"{name} has other marks"
    return _MARK.sub(lambda mark: parts[mark[1]], page)  # in one pass: the inserted texts may contain marks


def as_json(data: Mapping[str, Any]) -> str:
    """Return `data` as JSON without a character that ends a script element or that HTML could take for markup.

    Infinite numbers and NaN, which JSON lacks, become null.
    """
    text = json.dumps(_finite(data), ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, Mapping):
        return {name: _finite(v) for name, v in value.items()}
    return [_finite(v) for v in value] if isinstance(value, list | tuple) else value


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
