"""Manifests of built modules that say something else, and vouch for it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tuner.module.manifest import checksum_of


def write_manifest(folder: Path, data: Mapping[str, Any]) -> None:
    """Write a module's manifest with the checksum that belongs to it."""
    (folder / "manifest.json").write_text(json.dumps({**data, "checksum": checksum_of(data)}))
