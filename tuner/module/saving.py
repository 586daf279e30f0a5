"""Write a module's directory so that it appears whole or not at all. Start at `save`."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import tvm

from tuner.activity import activity
from tuner.devices.parallel import pool_library
from tuner.errors import BadInput
from tuner.graph import Program
from tuner.module.constants import write_constants
from tuner.module.manifest import FILE_NAME, Manifest, checksum, is_module, written_files

NETWORK = "network.ro"
PROGRAM = "program.json"

# LLVM ends the process when it cannot write, and TVM ignores the error. So room for this many bytes is claimed before
# they write.
_RESERVE_BYTES = 1 << 20
_RESERVE_PER_FUNCTION_BYTES = 1 << 18


@dataclass(frozen=True)
class Linking:
    """Says how kernels are linked: by a `command`, to which options and files are appended, for a processor of the
    architecture `machine`, such as "x86_64"."""

    command: tuple[str, ...]
    machine: str


# Checks the finished module at a path. It returns the largest relative error of every output by name, or None if it
# measures none.
Check = Callable[[Path], Mapping[str, float] | None]


@dataclass(frozen=True)
class Contents:
    """The parts of a module that are to be saved. `module` is the virtual machine's executable, `functions` the number
    of its kernels. `constants` holds the constants that are parameters, by device. `parallel` is true if kernels of the
    host are among them; a thread pool runs the loops of those kernels. `program` is what `tune export` needs, or None
    if the network cannot be exported."""

    module: Any
    functions: int
    constants: Sequence[Sequence[np.ndarray]]
    parallel: bool
    program: Program | None = None


@dataclass(frozen=True)
class Written:
    """The names of the files that were written, as the manifest has them, and the checksums of all files. `weights` and
    `code` are sizes in bytes: of the network with its constants, and of the kernels."""

    kernels: str | None
    network: str
    constants: tuple[str | None, ...]
    files: dict[str, str]
    program: str | None
    objects: str | None
    weights: int
    code: int


def check_directory(directory: Path) -> None:
    """Raise BadInput unless a module may be written to `directory`."""
    if directory.resolve() == Path.cwd() or os.path.ismount(directory):
        raise BadInput(f"{directory}: cannot be replaced as a whole; give a directory inside it")
    if directory.exists() and not (directory.is_dir() and (is_module(directory) or not any(directory.iterdir()))):
        raise BadInput(f"{directory}: exists and is not a built module; give another directory")
    if not directory.parent.is_dir():
        raise BadInput(f"{directory}: the folder {directory.parent} does not exist; create it first")
    if not os.access(directory.parent, os.W_OK | os.X_OK):
        raise BadInput(f"{directory}: the folder {directory.parent} cannot be written to")


def save(
    contents: Contents,
    directory: Path,
    linking: Linking | None,
    *,
    describe: Callable[[Written], Manifest],
    check: Check | None,
) -> Manifest:
    """Write a module with the manifest that `describe` makes, let `check` examine it, and move it into place. The
    errors that `check` returns are stored in the manifest. Without `linking` the kernels stay an object file.

    Raises BadInput if the directory cannot be written, and passes on what `check` raises. Nothing is left behind in
    either case.
    """
    directory = directory.resolve()  # a link's target is replaced, not the link
    try:
        partial = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", suffix=".partial", dir=directory.parent))
    except OSError as error:
        raise _unwritable(directory, error) from None
    try:
        try:
            os.chmod(partial, 0o755)
            with activity("generating code and linking it"):
                kernels, objects = _write_files(contents, partial, linking)
            if contents.parallel and linking is not None:
                _write_pool(partial, linking.machine)
            constants = tuple(write_constants(i, arrays, partial) for i, arrays in enumerate(contents.constants))
            program = _write_program(contents.program, partial)
            files = {path.name: checksum(path) for path in sorted(partial.iterdir())}
            weights, code = _size(partial, NETWORK, *constants), _size(partial, kernels or objects)
            written = Written(kernels, NETWORK, constants, files, program, objects, weights=weights, code=code)
            manifest = describe(written)
            (partial / FILE_NAME).write_text(manifest.to_json())
        except OSError as error:
            raise _unwritable(directory, error) from None
        errors = check(partial) if check is not None else None
        try:
            if errors is not None:
                manifest = replace(manifest, errors=dict(errors))
                (partial / FILE_NAME).write_text(manifest.to_json())
            _replace(partial, directory)
        except OSError as error:
            raise _unwritable(directory, error) from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return manifest


def _size(folder: Path, *names: str | None) -> int:
    """Return the size of the files that have a name."""
    return sum((folder / name).stat().st_size for name in names if name is not None)


def _unwritable(directory: Path, error: OSError) -> BadInput:
    return BadInput(f"{directory}: cannot be written: {error.strerror or error}")


def _write_files(contents: Contents, folder: Path, linking: Linking | None) -> tuple[str | None, str | None]:
    """Write the network and the kernels. Return the name of the kernels' library, or None if there are no kernels, and
    of their object file, or None if nothing is to be exported. The library's name contains its checksum, because the
    system's loader takes two libraries of one name for the same."""
    module = contents.module
    network, compiled, library = folder / NETWORK, folder / "kernels.o", folder / "kernels.so"
    module.write_to_file(str(network), "ro")
    _claim(compiled, _RESERVE_BYTES + contents.functions * _RESERVE_PER_FUNCTION_BYTES)
    kernels = [child for child in module.imports if child.kind == "llvm"]
    if not kernels:
        return None, None
    kernels[0].write_to_file(str(compiled), "o")
    if linking is None:
        return None, compiled.name
    objects = [compiled, *_write_device_code(kernels[0], folder)]
    command = [*linking.command, "-shared", "-z", "noexecstack", "-o", str(library), *map(str, objects)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        raise OSError(f"{linking.command[0]} failed: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    for part in objects if contents.program is None else objects[1:]:
        part.unlink()
    named = folder / f"kernels-{checksum(library)[:12]}.so"
    library.rename(named)
    return named.name, compiled.name if compiled.exists() else None


def _write_program(program: Program | None, folder: Path) -> str | None:
    if program is None:
        return None
    (folder / PROGRAM).write_text(json.dumps(program.as_dict()))
    return PROGRAM


def _write_pool(folder: Path, machine: str) -> None:
    """Copy the library whose thread pool runs the kernels' parallel loops on an architecture, if there is one."""
    pool = pool_library(machine)
    if pool is not None:
        shutil.copyfile(pool, folder / pool.name)


def _write_device_code(host: Any, folder: Path) -> list[Path]:
    """Write the kernels for other devices as an object file, and return its path in a list. The object file is linked
    into the library, so that these kernels are loaded with it."""
    if not host.imports:
        return []
    packed = folder / "devices.o"
    _claim(packed, _RESERVE_BYTES + 2 * sum(len(child.inspect_source()) for child in host.imports))
    target = host.get_function("_get_target_string")()
    pack = tvm.get_global_func("runtime.ModulePackImportsToLLVM")
    pack(host, False, target, "").write_to_file(str(packed), "o")
    return [packed]


def _claim(path: Path, size: int) -> None:
    """Raise OSError unless there is room for `size` bytes. If the file written before was cut off, there is no room
    left either, so this finds that error too."""
    with path.open("wb") as stream:
        os.posix_fallocate(stream.fileno(), 0, size)
    path.unlink()


def _replace(partial: Path, directory: Path) -> None:
    """Move the finished directory into place. An older module there is moved away first, and is moved back on failure.
    Other files in the older module's directory are kept."""
    if not directory.exists():
        partial.rename(directory)
        return
    old = partial.with_suffix(".old")
    directory.rename(old)
    try:
        partial.rename(directory)
    except OSError:
        old.rename(directory)
        raise
    _delete_module(old, directory)


def _delete_module(old: Path, directory: Path) -> None:
    """Delete the files that a build wrote. Other files move to `directory`, or stay where they are if the new module
    has a file of the same name."""
    written = written_files(old)
    for entry in old.iterdir():
        if entry.name in written and not entry.is_dir():
            entry.unlink()
        elif not (directory / entry.name).exists():
            entry.rename(directory / entry.name)
    with contextlib.suppress(OSError):  # raised if it is not empty: nothing in it may be lost
        old.rmdir()
