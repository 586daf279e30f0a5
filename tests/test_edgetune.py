"""The package `edgetune` exports what its users import, and imports nothing before it is used."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

import edgetune


@pytest.mark.parametrize("name", edgetune.__all__)
def test_a_public_name_is_what_its_package_exports(name: str) -> None:
    home = import_module(edgetune._HOMES[name])
    assert getattr(edgetune, name) is getattr(home, name)


def test_every_public_name_has_a_home() -> None:
    assert sorted(edgetune._HOMES) == edgetune.__all__
    assert set(edgetune.__all__) < set(dir(edgetune))


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'tunee'"):
        edgetune.tunee  # noqa: B018


def test_importing_it_imports_nothing_large() -> None:
    found = "import sys, edgetune; print(sorted({'tvm', 'numpy', 'onnx', 'tuner'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", found], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
