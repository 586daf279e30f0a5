"""A toolchain that is missing or broken is reported as such, before any candidate is blamed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import tvm

from tuner.devices import open_device
from tuner.errors import BadInput
from tuner.measure import LocalRunner, MeasureOptions, check_toolchain
from tuner.measure.codegen.toolchain import ENTRY, build_shared, preflight_data, preflight_func, preflight_result


def test_preflight_kernel_adds(tmp_path):
    library = tmp_path / "k.so"
    target = open_device("cpu", 1).target
    build_shared(preflight_func(2, target), target, library, check_toolchain())
    assert [path.name for path in tmp_path.iterdir()] == ["k.so"]
    data = preflight_data(2)
    out = tvm.runtime.tensor(np.zeros_like(data))
    tvm.runtime.load_module(str(library))[ENTRY](tvm.runtime.tensor(data), out)
    np.testing.assert_array_equal(out.numpy(), preflight_result(data))


@pytest.mark.parametrize("name", ["ld", "ld.gold", "ld.lld", "mold", "cc", "gcc", "clang"])
def test_every_linker_that_is_here_can_link(name, tmp_path):
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed")
    library = tmp_path / "k.so"
    target = open_device("cpu", 1).target
    build_shared(preflight_func(1, target), target, library, path)
    assert tvm.runtime.load_module(str(library)).implements_function(ENTRY)


def test_no_linker_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BadInput, match=r"no linker found.*install"):
        check_toolchain()


def test_a_linker_that_fails_is_not_the_candidates_fault(tmp_path, monkeypatch):
    linker = tmp_path / "ld"
    linker.write_text("#!/bin/sh\necho 'ld: this linker is broken' >&2\nexit 1\n")
    linker.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(BadInput, match=r"known to be good cannot be built here.*this linker is broken"):
        LocalRunner(open_device("cpu", 1))


def test_a_library_that_cannot_be_loaded_is_not_the_candidates_fault(tmp_path, monkeypatch):
    linker = tmp_path / "ld"
    linker.write_text('#!/bin/sh\nfor last; do :; done\ncp "$last" "$5"\n')  # an object file instead of a library
    linker.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(BadInput, match="known to be good cannot be run here"):
        LocalRunner(open_device("cpu", 1))


def test_a_plugin_that_cannot_be_imported_is_named():
    with pytest.raises(BadInput, match="no_such_plugin"):
        LocalRunner(open_device("cpu", 1), MeasureOptions(plugins=("no_such_plugin",)))


def test_a_full_disk_is_named(tmp_path, monkeypatch):
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("a small file system cannot be mounted here")
    try:
        Path(tmp_path, "ballast").write_bytes(bytes(48 << 10))
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        with pytest.raises(BadInput, match=r"No space left.*TMPDIR"):
            LocalRunner(open_device("cpu", 1))
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
