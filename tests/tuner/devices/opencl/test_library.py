"""Compiling and loading the runtime library: once, on demand, and never at the wrong time."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.tuner.devices.opencl.support import REPOSITORY
from tuner.devices import opencl
from tuner.devices.opencl import library


def _python(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    base = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(REPOSITORY), "HOME": "/nowhere"}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**base, **env})


@pytest.fixture(scope="module")
def compiled() -> Path:
    """This machine's copy of the library."""
    opencl.load()
    path = library.library_path(library.find_compiler())
    assert path is not None
    return path


@pytest.fixture
def cache(compiled: Path, tmp_path: Path) -> Path:
    """A cache folder that holds the library."""
    folder = tmp_path / "cache/edgetune"
    folder.mkdir(parents=True)
    shutil.copy(compiled, folder)
    return folder.parent


@pytest.fixture
def entry_point(tmp_path: Path) -> Path:
    """A folder with an installed distribution that has our entry point, as `pyproject.toml` declares it."""
    declared = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["entry-points"]["tvm.backends"]
    folder = tmp_path / "installed/made_for_a_test-1.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: made-for-a-test\nVersion: 1\n")
    lines = [f"{name} = {value}" for name, value in declared.items()]
    (folder / "entry_points.txt").write_text("\n".join(["[tvm.backends]", *lines, ""]))
    return folder.parent


_IMPORT = """
import sys, warnings
warnings.simplefilter("error")
import tvm, tvm_ffi
print(tvm_ffi.get_global_func("device_api.opencl", allow_missing=True) is not None)
libraries = open("/proc/self/maps").read()
print([name for name in ("libOpenCL", "libintelocl", "libpocl") if name in libraries])
"""


@pytest.mark.sampled(2)
def test_importing_tvm_loads_what_is_compiled_and_opens_no_driver(cache, entry_point):
    path = f"{entry_point}:{REPOSITORY}"
    done = _python(_IMPORT, XDG_CACHE_HOME=str(cache), PYTHONPATH=path)
    assert done.stdout.splitlines() == ["True", "[]"], done.stderr
    first = "import tuner.devices\n" + _IMPORT + "tuner.devices.opencl.load(); tuner.devices.opencl.load()"
    done = _python(first, XDG_CACHE_HOME=str(cache), PYTHONPATH=path)
    assert done.stdout.splitlines() == ["True", "[]"], done.stderr


@pytest.mark.sampled(2)
def test_importing_tvm_compiles_nothing(tmp_path, entry_point):
    path = f"{entry_point}:{REPOSITORY}"
    for env in ({"XDG_CACHE_HOME": str(tmp_path / "empty")}, {}, {"HOME": ""}):
        done = _python(_IMPORT, PYTHONPATH=path, **env)
        assert done.stdout.splitlines() == ["False", "[]"], done.stderr
    assert not (tmp_path / "empty").exists()


def test_a_library_that_cannot_be_loaded_does_not_disturb_tvm(cache, entry_point):
    (broken,) = cache.glob("edgetune/*.so")
    broken.write_bytes(b"not a library")
    done = _python(_IMPORT, XDG_CACHE_HOME=str(cache), PYTHONPATH=f"{entry_point}:{REPOSITORY}")
    assert done.stdout.splitlines() == ["False", "[]"], done.stderr


def test_importing_the_tuner_opens_no_driver_and_loads_nothing(tmp_path):
    done = _python("import tuner.devices.opencl, tuner.devices" + _IMPORT, XDG_CACHE_HOME=str(tmp_path))
    assert done.stdout.splitlines() == ["False", "[]"], done.stderr


_LOAD = """
from tuner.devices import opencl
from tuner.errors import BadInput
try:
    opencl.load()
    print("loaded")
except BadInput as error:
    print(error)
"""


def test_a_compiled_library_needs_no_compiler(cache, tmp_path):
    done = _python(_LOAD, XDG_CACHE_HOME=str(cache), PATH=str(tmp_path))
    assert done.stdout.splitlines() == ["loaded"], done.stderr


def test_no_compiler_gives_one_line_that_says_what_to_install(tmp_path):
    done = _python(_LOAD, XDG_CACHE_HOME=str(tmp_path), PATH=str(tmp_path))
    (line,) = done.stdout.splitlines()
    assert "no" in line
    assert "apt-get install g++" in line


def test_a_compiler_that_fails_gives_one_line_and_leaves_nothing(tmp_path):
    compiler = tmp_path / "g++"
    compiler.write_text(
        "#!/bin/sh\necho 'note: context' >&2\necho 'x.cc:1: error: this compiler is broken' >&2\nexit 1\n"
    )
    compiler.chmod(0o755)
    done = _python(_LOAD, XDG_CACHE_HOME=str(tmp_path / "cache"), CXX=str(compiler))
    (line,) = done.stdout.splitlines()
    assert "this compiler is broken" in line
    assert str(compiler) in line
    assert [path.name for path in (tmp_path / "cache/edgetune").iterdir()] == ["opencl-runtime-lock"]


def test_a_cache_that_cannot_be_written_gives_one_line(tmp_path):
    (tmp_path / "edgetune").write_text("a file")
    done = _python(_LOAD, XDG_CACHE_HOME=str(tmp_path))
    (line,) = done.stdout.splitlines()
    assert "set XDG_CACHE_HOME" in line
    assert str(tmp_path) in line


@pytest.mark.sampled(2)
def test_processes_that_load_at_once_compile_once(tmp_path):
    log = tmp_path / "log"
    compiler = tmp_path / "g++"
    compiled = library.library_path(library.find_compiler())
    compiler.write_text(
        f'#!/bin/sh\necho run >> "{log}"\nsleep 1\nwhile [ "$1" != -o ]; do shift; done\ncp {compiled} "$2"\n'
    )
    compiler.chmod(0o755)
    command = [sys.executable, "-c", _LOAD]
    env = {
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": str(REPOSITORY),
        "XDG_CACHE_HOME": str(tmp_path),
        "CXX": str(compiler),
    }
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) for _ in range(3)]
    assert [process.communicate()[0].split() for process in running] == [["loaded"]] * 3
    assert log.read_text().split() == ["run"]


def test_another_runtime_is_left_alone():
    code = "import tvm_ffi\ntvm_ffi.register_global_func('device_api.opencl', lambda: None)\n" + _LOAD
    (line,) = _python(code, HOME=str(Path.home())).stdout.splitlines()
    assert "has an OpenCL runtime of its own" in line


def test_the_name_depends_on_versions_sources_and_compiler(monkeypatch, tmp_path):
    compiler = library.find_compiler()
    paths = {library.library_path(compiler)}
    with monkeypatch.context() as patched:
        patched.setattr(library.metadata, "version", lambda name: f"{name} 0")
        paths.add(library.library_path(compiler))
    changed = shutil.copytree(library.SOURCES, tmp_path / "runtime")
    with (changed / "memory.cc").open("a") as file:
        file.write("\n")
    with monkeypatch.context() as patched:
        patched.setattr(library, "SOURCES", changed)
        paths.add(library.library_path(compiler))
    other = tmp_path / "g++"
    other.write_text("")
    other.chmod(0o755)
    paths.add(library.library_path(str(other)))
    assert len(paths) == 4


def test_sources_travel_with_an_installation():
    """What the compiler reads is what setuptools installs."""
    patterns = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    package = library.SOURCES.parent
    installed = {path for pattern in patterns["tuner.devices.opencl"] for path in package.glob(pattern)}
    assert installed == {path for path in library.SOURCES.rglob("*") if path.is_file()}
