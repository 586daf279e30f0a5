"""This module parses data that other programs have written."""

from __future__ import annotations

import json
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """Parse JSON as json.loads does, and raise ValueError also for a text that is nested too deeply for Python."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
