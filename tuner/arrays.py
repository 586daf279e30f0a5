"""Read and write files of named arrays in NumPy's .npz format. Start at `read_arrays` and `write_arrays`."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import psutil

from board_agent.disk import whole_file
from tuner.errors import BadInput, last_line


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of an .npz file by name. Raises BadInput if the file is not an .npz file, holds objects, or
    takes more memory than is free."""
    try:
        if not zipfile.is_zipfile(path):
            np.load(path, allow_pickle=False, mmap_mode="r")
            raise BadInput(f"{path}: holds one array without a name; write it with numpy.savez(FILE, NAME=array)")
        with zipfile.ZipFile(path) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
        if size > psutil.virtual_memory().available:
            raise BadInput(f"{path}: holds {size / 1e9:.2g} GB, more than fit into the memory that is free")
        with np.load(path, allow_pickle=False) as arrays:
            found = {name: arrays[name] for name in arrays.files}
        for name, array in found.items():
            if not isinstance(array, np.ndarray):  # NumPy returns an entry without an array header as bytes
                raise BadInput(f"{path}: {name!r} in it is no array")
        return found
    except BadInput:
        raise
    except Exception as error:  # zipfile, its codecs and NumPy's parser raise many types of errors
        raise BadInput(f"{path}: not an .npz file that can be read ({last_line(error)})") from None


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write an .npz file, whole or not at all. Raises BadInput if it cannot be written."""
    try:
        # numpy.savez takes the names as keyword arguments, so it cannot write an array that is named "file".
        with whole_file(str(path)) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                    np.lib.format.write_array(entry, np.asanyarray(array), allow_pickle=False)
    except OSError as error:
        raise BadInput(f"{path}: cannot be written: {error.strerror or error}") from error
