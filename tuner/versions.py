"""Find the versions of the packages that generate kernels, without importing them."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def versions() -> dict[str, str]:
    """Return the versions of TVM and of edgetune. Raises PackageNotFoundError if TVM is not installed."""
    return {"tvm": version("apache-tvm"), "edgetune": _own()}


def _own() -> str:
    try:
        return version("edgetune")
    except PackageNotFoundError:  # run from a source tree
        return "source"
