"""Computes a digest of the sources that must be the same on machines that build and search for each other, as their
versions must (`tuner.versions`). Start at `source_digest`."""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path

# Packages that decide which library a candidate becomes, and what a searcher proposes.
_DECIDING = ("templates", "vision_ops", "tuner.measure", "tuner.search")


def source_digest() -> str:
    """Return a digest of the sources that libraries and proposals depend on, because two states of a checkout have the
    same version."""
    digest = hashlib.sha256()
    for package in _DECIDING:
        spec = importlib.util.find_spec(package)
        assert spec is not None
        assert spec.origin is not None
        folder = Path(spec.origin).parent
        for path in sorted(folder.rglob("*.py")):
            digest.update(f"{package}/{path.relative_to(folder)}\0".encode() + path.read_bytes())
    return digest.hexdigest()
