"""What is in the process that forks workers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tuner.measure.workers.worker import ProcessServer

pytestmark = pytest.mark.usefixtures("started_servers")

TORCH = """
def told(what):
    with open({log!r}, "a") as log:
        print(what, file=log)
told("imported")
class Tensor:
    __dlpack_c_exchange_api__ = None
class dtype: pass
class device: pass
class version: cuda = "13.0"
class cuda:
    @staticmethod
    def is_available():
        told("opened")
        return False
__version__ = "2.11.0"
def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return name
"""


def test_no_driver_of_cuda_is_opened_before_workers_are_forked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, installed = tmp_path / "log", tmp_path / "torch"
    installed.mkdir()
    (installed / "__init__.py").write_text(TORCH.format(log=str(log)))
    (installed / "version.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("TVM_FFI_DISABLE_TORCH_C_DLPACK", raising=False)
    server = ProcessServer(tmp_path, ("tuner.measure.workers.build_main",))
    try:
        worker = server.spawn(
            "builder", "tests.tuner.measure.misbehaving:main", None, cpus=sorted(os.sched_getaffinity(0))
        )
        worker.stop()
    finally:
        server.close()
    assert log.read_text() == "imported\n"
