"""Versions of what makes kernels, without importing it."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def versions() -> dict[str, str]:
    """Of TVM and of edgetune. Raises PackageNotFoundError where TVM is not installed."""
    return {"tvm": version("apache-tvm"), "edgetune": _own()}


def _own() -> str:
    try:
        return version("edgetune")
    except PackageNotFoundError:  # run from a source tree
        return "source"
