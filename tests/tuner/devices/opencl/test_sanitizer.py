"""The runtime under a sanitizer, on the driver that computes nothing: no bad access, no leak, from eight threads."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tuner.devices.opencl.support import REPOSITORY, compile_noop_driver
from tuner.devices.opencl.library import compile_library

# Nothing here has TVM compile for the host: LLVM's just-in-time linker does not work under the sanitizer.
_SCENARIO = """
import ctypes, sys
import tvm
ctypes.CDLL(sys.argv[1])
from tests.tuner.devices.opencl import test_kernels, test_memory
from tests.tuner.devices.opencl.support import error_of
from tuner.devices import opencl
import numpy as np

opencl.set_binary_cache(None)
for _ in range(3):
    test_kernels._everything_once()
    test_memory._take_and_give([1000, 100_000, 5000], 3)
    test_memory._copies()
test_memory._between(0, 1)
test_kernels._load_pieces()
test_kernels._errors_of_arguments()
test_kernels._halves(np.linspace(-70000, 70000, 50, dtype=np.float32))
error_of(test_kernels._launch_from_threads)  # 8 threads; the results are wrong, as nothing is computed
opencl.set_flush_every(0, 3)
error_of(test_kernels._launch_from_threads)
print("done", opencl.counters()["launches"])
"""


def _sanitizer_runtime(compiler: str) -> Path | None:
    found = subprocess.run([compiler, "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    path = Path(found.stdout.strip())
    return path.resolve() if path.is_absolute() and path.exists() else None


@pytest.mark.night
def test_no_bad_access_and_no_leak(tmp_path):
    compiler = shutil.which("g++")
    assert compiler is not None
    runtime = _sanitizer_runtime(compiler)
    if runtime is None:
        pytest.skip("this compiler has no libasan")
    flags = ["-fsanitize=address", "-g", "-fno-omit-frame-pointer"]
    driver, library = compile_noop_driver(tmp_path, flags), tmp_path / "libchecked_runtime.so"
    compile_library(compiler, library, flags)
    libcxx = subprocess.run([compiler, "-print-file-name=libstdc++.so"], capture_output=True, text=True, check=True)
    env = {
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": str(REPOSITORY),
        "EDGETUNE_OPENCL": str(driver),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "TVM_DEVICE_BACKEND_AUTOLOAD": "0",  # the checked copy is to be the one
        "LD_PRELOAD": f"{runtime} {Path(libcxx.stdout.strip()).resolve()}",
        # Python and LLVM keep what they have until the end: only leaks that involve our libraries count.
        "ASAN_OPTIONS": "detect_leaks=1:exitcode=0:halt_on_error=1:fast_unwind_on_malloc=0:malloc_context_size=12",
    }
    command = [sys.executable, "-c", _SCENARIO, str(library)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert done.stdout.startswith("done "), done.stderr[-4000:]
    assert int(done.stdout.split()[1]) >= 2 * 8 * 2000
    reports = done.stderr.split("\n\n")
    ours = [text for text in reports if "libchecked_runtime" in text or "libnoop" in text]
    assert not ours, "\n\n".join(ours)[:6000]
    assert "ERROR: AddressSanitizer" not in done.stderr, done.stderr[:6000]
