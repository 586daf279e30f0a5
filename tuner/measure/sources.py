"""What has to be the same on machines that build for each other, beside the versions (`tuner.versions`)."""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path

_BUILDING = ("templates", "vision_ops", "tuner.measure")  # what decides which library comes of a candidate


def source_digest() -> str:
    """Of the sources that libraries are made by: two states of a checkout have the same version."""
    digest = hashlib.sha256()
    for package in _BUILDING:
        spec = importlib.util.find_spec(package)
        assert spec is not None
        assert spec.origin is not None
        folder = Path(spec.origin).parent
        for path in sorted(folder.rglob("*.py")):
            digest.update(f"{package}/{path.relative_to(folder)}\0".encode() + path.read_bytes())
    return digest.hexdigest()
