"""A board of another architecture, run by qemu: what is built here for it runs there, and computes the same.

EDGETUNE_TEST_ARM64 names the system that arm64_board.sh has made. Times of an emulated processor mean nothing, and must
not be taken for a real one's.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.board_agent.support import free_port
from tests.tuner.cli.conftest import run_tune
from tests.tuner.tiny_network import write_tiny_network
from tuner.devices import open_device
from tuner.devices.board import Boards, Pairing
from tuner.devices.board.packing import write_agent
from tuner.errors import BadInput
from tuner.export.compiling import own_libc, toolchain_for
from tuning_db import lookup
from tuning_db.record import DeviceKey
from tuning_db.store import open_db

NAME = "emulated"
CONV = ("conv2d", "--shape", "1,32,14,14,32,3,3", "--padding", "1", "--epilogue", "bias,relu")


def why_not() -> str | None:
    folder = os.environ.get("EDGETUNE_TEST_ARM64")
    if folder is None:
        return "EDGETUNE_TEST_ARM64 names no arm64 system (tests/tuner/fleet/arm64_board.sh FOLDER makes one)"
    if os.geteuid() != 0:
        return "another system is changed into by root alone"
    command = ["chroot", folder, "/board/bin/python", "-c", "import platform; print(platform.machine())"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    return None if ran.stdout.strip() == "aarch64" else f"{folder} does not run: {ran.stderr.strip()[-200:]}"


@pytest.fixture(scope="module", autouse=True)
def board(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    if (missing := why_not()) is not None:
        pytest.skip(missing)
    root, config = Path(os.environ["EDGETUNE_TEST_ARM64"]), tmp_path_factory.mktemp("config")
    write_agent(root / "agent.pyz")
    port = free_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(config))
        with Pairing(Boards(), NAME, "127.0.0.1") as pairing:
            waiting = threading.Thread(target=lambda: pairing.wait(port))
            waiting.start()
            # Its own mounts end with it.
            inside = f"/board/bin/python /agent.pyz --port {port} --folder /tmp/keys --pair {pairing.code}"
            mounts = ("-t proc proc {}/proc", "--rbind /sys {}/sys", "--rbind /dev {}/dev", "-t tmpfs tmpfs {}/tmp")
            script = "; ".join(f"mount {mount.format(root)}" for mount in mounts)
            agent = subprocess.Popen(
                ["unshare", "-m", "sh", "-c", f"{script}; exec chroot {root} {inside}"],
                stdout=subprocess.PIPE,
                text=True,
            )
            waiting.join()
            assert agent.stdout is not None
            assert any(line.startswith("listening") for line in agent.stdout)
        try:
            yield
        finally:
            agent.terminate()
            agent.wait()
            agent.stdout.close()


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("device", "more", "kind", "template"),
    [(f"board:{NAME}", ("--threads", "1"), "cpu", "cpu."), (f"board:{NAME}/opencl:0", (), "opencl", "gpu.")],
)
def test_kernels_are_tuned_verified_and_stored(
    device: str, more: tuple[str, ...], kind: str, template: str, tmp_path: Path
) -> None:
    if kind == "cpu" and shutil.which("aarch64-linux-gnu-ld") is None:
        pytest.skip("no linker for aarch64 (apt-get install binutils-aarch64-linux-gnu)")
    db = tmp_path / "t.db"
    (listed,) = run_tune("board", "list", "--json", cwd=tmp_path).json()["boards"]
    assert listed["facts"]["emulated"] is True
    done = run_tune("op", *CONV, "--device", device, *more, "--trials", 8, "--db", db, cwd=tmp_path)
    assert done.status == 0, done.err
    assert f"{device} is emulated: its times mean nothing" in done.err
    key = open_device(device, 1 if more else None).key
    assert (key.kind, key.family.endswith("-emulated"), key.model.endswith("-emulated")) == (kind, True, True)
    with open_db(db) as store:
        trials = list(store.trials())
        assert len(trials) >= 8
        assert {trial.device for trial in trials} == {key}
        best = lookup.best(store, trials[0].workload, key)
        assert best is not None
        assert best.trial.config.template.startswith((template, "mali.", "intel."))
        assert best.trial.error is not None
        assert best.trial.error < 1e-4
        # A real board of the same family has learned nothing.
        real = DeviceKey(kind, key.family.removesuffix("-emulated"), key.model.removesuffix("-emulated"), key.attrs)
        assert lookup.best(store, trials[0].workload, real) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("device", "more"),
    [
        (f"board:{NAME}", ("--threads", "1")),
        pytest.param(f"board:{NAME}/opencl:0", (), marks=pytest.mark.night),  # its driver is emulated, too
    ],
)
def test_a_network_is_built_here_and_runs_there(device: str, more: tuple[str, ...], tmp_path: Path) -> None:
    """It is verified against its model there; the export of the module is checked there once more."""
    try:
        toolchain_for("aarch64", own_libc())
    except BadInput as missing:
        pytest.skip(str(missing))
    if "opencl" in device and not [*Path(os.environ["EDGETUNE_TEST_ARM64"]).glob("usr/lib/*/libOpenCL.so.1")]:
        pytest.skip("the arm64 system has no loader of OpenCL's drivers (apt-get install ocl-icd-libopencl1 there)")
    write_tiny_network(tmp_path / "net.onnx")
    open_db(tmp_path / "edgetune.db").close()
    built = run_tune("build", "net.onnx", "--device", device, *more, "-o", "m", "--json", cwd=tmp_path)
    assert built.status == 0, built.err
    assert 0 <= max(built.json()["relative_error"].values()) < 1e-4
    ran = run_tune("run", "m", "--device", device, "--json", cwd=tmp_path)
    assert ran.status == 0, ran.err
    timed = run_tune("bench", "m", "--device", device, "--rounds", 1, "--minutes", 0.001, "--json", cwd=tmp_path)
    assert timed.status == 0, timed.err
    exported = run_tune("export", "m", "-o", "m.c", "--json", cwd=tmp_path)
    assert (exported.status, exported.json()["checked"]) == (0, {})
    assert "m: was built for a CPU with neon" in run_tune("run", "m", cwd=tmp_path).error
    checked = run_tune("export", "net.onnx", "--device", device, *more, "-o", "net.c", "--json", cwd=tmp_path)
    assert checked.status == 0, checked.err
    assert checked.json()["checked"]["device"] == device


def test_the_processor_is_compiled_for() -> None:
    device = open_device(f"board:{NAME}", 1)
    assert str(device.target.attrs["mtriple"]) == "aarch64-linux-gnu"
