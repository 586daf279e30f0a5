"""Imports plugins, modules that register templates, in this process. Start at `import_plugins`."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from tuner.errors import BadInput


def import_plugins(modules: Sequence[str]) -> None:
    """Import modules that register templates. Raises BadInput if one cannot be imported."""
    for name in modules:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise BadInput(f"plugin {name!r} cannot be imported: {error}") from error
