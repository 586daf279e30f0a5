"""A CUDA driver without a GPU, which child processes are started with."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

DRIVER = Path(__file__).with_name("cuda_driver.cc")


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The driver's, under Nvidia's names."""
    compiler = shutil.which("g++")
    assert compiler is not None, "apt-get install g++"
    folder = tmp_path_factory.mktemp("driver")
    (folder / "versions").write_text("libcudart.so.13 { global: *; };\n")
    versioned = [f"-Wl,--version-script={folder / 'versions'}", str(DRIVER)]
    for name, source in (("libcudart.so.13", versioned), ("libcuda.so.1", ["-x", "c++", os.devnull])):
        shared = [compiler, "-std=c++17", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", str(folder / name)]
        subprocess.run([*shared, *source], check=True)
    return folder
