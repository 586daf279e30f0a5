"""An export knows what the processor can do, as the system lists it."""

from __future__ import annotations

import ctypes
import platform
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.tuner.export.support import Made
from tuner.devices import usable_cpus
from tuner.export import exporting
from tuner.export.checking import check_nothing, wrapper_of
from tuner.export.source import Source
from tuner.module.cpu_features import _ARM, _NAMES, _RISCV, _X86, missing_features

RUNTIME = Path(exporting.__file__).with_name("runtime")
KNOWN = {"x86_64": {*_X86, "xop"}, "aarch64": {*_ARM}, "riscv64": {*_RISCV}}
LACKED = {"x86_64": "xop"}  # an instruction set of old processors that none of today has


@pytest.fixture(scope="module")
def processor(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    library = tmp_path_factory.mktemp("processor") / "processor.so"
    command = ["gcc", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-o", str(library)]
    subprocess.run([*command, str(RUNTIME / "processor.c")], check=True)
    opened = ctypes.CDLL(str(library))
    opened.edgetune_lacks.restype = ctypes.c_char_p
    return opened


@pytest.mark.parametrize("name", [*_NAMES, "xop"])
def test_instruction_sets(processor: ctypes.CDLL, name: str) -> None:
    found = processor.edgetune_lacks((ctypes.c_char_p * 2)(b"something unknown", name.encode()), 2)
    known = name in KNOWN.get(platform.machine(), ())
    expected = name.encode() if known and missing_features((name,)) else None
    assert found == expected


def test_cores(processor: ctypes.CDLL) -> None:
    cpus = (ctypes.c_int * 256)()
    count = processor.edgetune_cores(cpus, 256)
    assert sorted(cpus[:count]) == sorted(usable_cpus())
    assert processor.edgetune_cores(None, 0) == count


@pytest.mark.skipif(platform.machine() not in LACKED, reason="no instruction set is known that this processor lacks")
def test_a_processor_that_lacks_instructions(tiny: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lacked = LACKED[platform.machine()]
    monkeypatch.setattr(exporting, "Source", lambda *a, **k: replace(Source(*a, **k), features=("avx", lacked)))
    made = exporting.export(tiny.module, tmp_path / "out", "tiny", check=check_nothing)
    wrapper = wrapper_of(made.folder, made.name)
    with pytest.raises(wrapper.NetworkError, match=f"{lacked}: the processor lacks instructions"):
        wrapper.Network()
