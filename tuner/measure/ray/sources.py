"""What has to be the same on machines that build and search for each other, beside the versions (`tuner.versions`)."""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path

# What decides which library comes of a candidate, and what a searcher proposes.
_DECIDING = ("templates", "vision_ops", "tuner.measure", "tuner.search")


def source_digest() -> str:
    """Of the sources that libraries are made by: two states of a checkout have the same version."""
    digest = hashlib.sha256()
    for package in _DECIDING:
        spec = importlib.util.find_spec(package)
        assert spec is not None
        assert spec.origin is not None
        folder = Path(spec.origin).parent
        for path in sorted(folder.rglob("*.py")):
            digest.update(f"{package}/{path.relative_to(folder)}\0".encode() + path.read_bytes())
    return digest.hexdigest()
