"""Reading what others have written."""

from __future__ import annotations

import json
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """As json.loads, but values that are nested too deep for Python are a ValueError like everything else that it
    cannot read."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
