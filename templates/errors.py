"""Defines the error of templates that cannot say what they offer."""

from __future__ import annotations

import traceback
from pathlib import Path


class TemplateFailed(Exception):
    """Raised where a template's `space` raises: a fault of the template, which the message names with its place."""

    def __init__(self, name: str, error: Exception) -> None:
        *_, frame = traceback.extract_tb(error.__traceback__)
        said = (str(error).strip() or "no message").splitlines()[-1]
        place = f"{Path(frame.filename).name}:{frame.lineno}"
        super().__init__(f"template {name} fails to make its space: {type(error).__name__}: {said} ({place})")
