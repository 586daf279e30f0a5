"""To load and run a module imports NumPy, TVM and a few files of ours, and nothing that tunes or builds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tuner.module import load, random_inputs

_RUN = """
import json, sys
from tuner.module import load, random_inputs
module = load(sys.argv[1])
outputs = module(random_inputs(module.manifest.inputs, 0))
print(json.dumps({"modules": sorted(sys.modules), "outputs": {k: v.tolist() for k, v in outputs.items()}}))
"""
# Libraries that tuning, building or the command line need.
_LIBRARIES = {
    "alembic",
    "cloudpickle",
    "cryptography",
    "loky",
    "onnx",
    "onnxruntime",
    "psutil",
    "rich",
    "sqlalchemy",
    "typer",
    "vision_ops",
    "xgboost",
}
_PARTS = (
    "templates.builtin",
    "templates.cpu",
    "tuner.cli",
    "tuner.devices.board",
    "tuner.graph",
    "tuner.measure",
    "tuner.module.builder",
    "tuner.search",
    "tuner.session",
    "tuning_db.store",
)


def _ran(module: Path, **environment: str) -> Any:
    command = [sys.executable, "-c", _RUN, str(module)]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return json.loads(done.stdout)


# What a CPU's vectors hold decides what inputs a module takes.
_ALLOWED = {"templates.cpu", "templates.cpu.isa"}


def _too_much(modules: list[str]) -> set[str]:
    parts = {
        name for name in set(modules) - _ALLOWED if any(name == part or name.startswith(f"{part}.") for part in _PARTS)
    }
    return parts | _LIBRARIES & {name.partition(".")[0] for name in modules}


def test_running_a_module_imports_nothing_that_tunes_or_builds(exports: Path) -> None:
    modules = _ran(exports / "tiny.module")["modules"]
    assert {"numpy", "tvm", "tuner.module.runtime"} <= set(modules)
    assert _too_much(modules) == set()


@pytest.mark.parametrize("name", ["tiny", "detector"])
def test_a_module_runs_on_tvms_runtime_library_alone(name: str, exports: Path) -> None:
    """The compiler's library, the larger part of TVM, is not even loaded."""
    ran = _ran(exports / f"{name}.module", TVM_USE_RUNTIME_LIB="1")
    assert "tvm.relax" not in ran["modules"]
    module = load(exports / f"{name}.module")
    wanted = module(random_inputs(module.manifest.inputs, 0))
    assert ran["outputs"].keys() == wanted.keys()
    for output, value in wanted.items():
        np.testing.assert_array_equal(np.asarray(ran["outputs"][output], value.dtype), value)


def test_the_package_exports_what_builds_when_it_is_asked_for() -> None:
    import tuner.module
    from tuner.module.builder import build

    assert tuner.module.build is build
    assert set(tuner.module._HOMES) < set(tuner.module.__all__)
    assert all(getattr(tuner.module, name) is not None for name in tuner.module.__all__)
    with pytest.raises(AttributeError, match="no attribute 'biuld'"):
        tuner.module.biuld  # noqa: B018
