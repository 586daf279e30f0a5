"""A bundle on its device: what stops it, what it goes on from, and who is to blame."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from board_agent.scratch import MARKER
from tests.board_agent.bundles import (
    BLOBS,
    MANIFEST,
    manifest_of,
    names,
    on_the_device,
    results_of,
    rewritten,
    simulated,
    with_manifest,
)
from tests.board_agent.support import eventually
from tests.board_agent.thin import thin_python
from tests.disks import small_file_system

FOREVER = {"least": 10**9, "most": 10**9, "seconds": 1e9}


def journal_of(bundle: Path) -> Path:
    return bundle.with_name(f"r.zip.{manifest_of(bundle)['name']}.partial") / "results.jsonl"


def ended_in_the_first_candidate(bundle: Path, how: signal.Signals) -> int:
    """Runs it until it measures its first candidate, for ever, and ends it."""
    lines = journal_of(bundle)
    before = lines.read_text().count('"begun"') if lines.exists() else 0
    slow = with_manifest(bundle, "slow.pyz", repetition=FOREVER, seconds=8e4)
    command = [sys.executable, slow, "-o", "r.zip"]
    # A run of tests under `nohup` has its children ignore hang-ups, too.
    with subprocess.Popen(
        command,
        cwd=bundle.parent,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
    ) as run:
        eventually(lambda: run.poll() is not None or (lines.exists() and lines.read_text().count('"begun"') > before))
        run.send_signal(how)
    return run.returncode


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A file system of a megabyte, which everybody can get at."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        with small_file_system(Path(name, "disk"), "1m") as folder:
            yield folder


def test_a_device_that_cannot_run_a_bundle_says_so_and_blames_no_candidate(bundle: Path) -> None:
    done = on_the_device(bundle.name, "-o", "r.zip", cwd=bundle.parent, python=thin_python())
    assert done.returncode == 2
    assert "No module named 'tvm'" in done.stderr
    assert not (bundle.parent / "r.zip").exists()
    assert not journal_of(bundle).parent.exists()


def test_a_device_that_computes_nonsense_measures_nothing(bundle: Path) -> None:
    wrong = {**manifest_of(bundle)["preflight"]}
    wrong["expected"] = wrong["calls"][0][0]["blob"]
    bad = with_manifest(bundle, "bad.pyz", preflight=wrong)
    done = on_the_device(bad.name, "-o", "r.zip", cwd=bundle.parent)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "computed something else" in done.stderr
    assert not journal_of(bundle).parent.exists()


@pytest.mark.sampled(2)
def test_an_interrupt_is_nobodys_fault(bundle: Path) -> None:
    for how in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        assert ended_in_the_first_candidate(bundle, how) == 130
        assert '"begun"' not in journal_of(bundle).read_text()
    done = on_the_device(bundle.name, "-o", "r.zip", cwd=bundle.parent)
    assert done.returncode == 0, done.stderr
    assert not any("failed" in line for line in results_of(bundle.with_name("r.zip")))


def test_a_candidate_with_which_the_device_goes_down_is_not_run_for_ever(bundle: Path) -> None:
    for _ in range(2):
        assert ended_in_the_first_candidate(bundle, signal.SIGKILL) == -signal.SIGKILL
    done = on_the_device(bundle.name, "-o", "r.zip", cwd=bundle.parent)
    assert done.stderr.startswith("1 of"), done.stderr
    first, *others = results_of(bundle.with_name("r.zip"))
    assert "went down" in first["failed"]["lost"]
    assert len(others) == len(names(bundle)) - 1
    assert not any("failed" in line for line in others)


def test_a_full_scratch_disk_is_nobodys_fault(bundle: Path, small_disk: Path) -> None:
    def padded(files: dict[str, bytes]) -> None:
        manifest = json.loads(files[MANIFEST])
        third = manifest["candidates"][2]
        files[BLOBS + "large"] = files[BLOBS + third["library"]] + bytes(1 << 20)
        third["library"] = "large"
        files[MANIFEST] = json.dumps(manifest).encode()

    large = rewritten(bundle, "large.pyz", padded)
    on_small = {**os.environ, "TMPDIR": str(small_disk)}
    done = on_the_device(large.name, "-o", "r.zip", cwd=bundle.parent, env=on_small)
    assert done.returncode == 2
    assert "No space left on device: free some space there" in done.stderr.splitlines()[-1]
    assert journal_of(bundle).read_text().count('"begun"') == 2
    done = on_the_device(large.name, "-o", "r.zip", cwd=bundle.parent)
    assert done.returncode == 0, done.stderr
    assert not any("failed" in line for line in results_of(bundle.with_name("r.zip")))


def test_a_scratch_disk_where_candidates_cannot_get_is_told(bundle: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("candidates run as the user that asks")
    hidden = bundle.with_name("hidden")
    hidden.mkdir(mode=0o700)
    done = on_the_device(bundle.name, cwd=bundle.parent, env={**os.environ, "TMPDIR": str(hidden)})
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "set TMPDIR to another folder" in done.stderr


def is_unlocked(folder: Path) -> bool:
    """Whether nobody has a scratch folder's lock any more; other tests have folders of their own."""
    try:
        with (folder / MARKER).open("rb+") as marker:
            fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, FileNotFoundError):
        return False
    return True


def test_what_runs_that_was_killed_left_is_swept_away(bundle: Path) -> None:
    ended_in_the_first_candidate(bundle, signal.SIGKILL)
    left = set(filter(is_unlocked, Path(tempfile.gettempdir()).glob("edgetune-board-*")))
    assert left
    assert on_the_device(bundle.name, cwd=bundle.parent).returncode == 0
    assert not any(path.exists() for path in left)


def test_a_compiler_without_space_is_nobodys_fault(bundle: Path) -> None:
    """As PoCL's, which aborts."""
    says = 'self._loaded += 1\n        if self._loaded == 4: raise OSError(5, "LLVM: No space left on device")'
    full = simulated(bundle, "full.pyz", "kernel_server", "self._loaded += 1", says)
    done = on_the_device(full.name, "-o", "r.zip", cwd=bundle.parent)
    assert (done.returncode, "No space left" in done.stderr.splitlines()[-1]) == (2, True)
    assert journal_of(bundle).read_text().count('"candidate"') == 2  # and the first was the one that is known


@pytest.mark.sampled(2)
def test_a_disk_that_is_too_small_for_the_results_loses_none(bundle: Path, small_disk: Path) -> None:
    (small_disk / "ballast").write_bytes(bytes(700 << 10))
    done = on_the_device(bundle.name, "-o", small_disk / "r.zip", cwd=bundle.parent)
    assert done.returncode == 2
    assert "No space left on device" in done.stderr.splitlines()[-1]
    (small_disk / "ballast").unlink()
    done = on_the_device(bundle.name, "-o", small_disk / "r.zip", cwd=bundle.parent)
    assert "have results: going on" in done.stderr
    assert len(results_of(small_disk / "r.zip")) == len(names(bundle))
    assert os.listdir(small_disk) == ["r.zip"]


@pytest.mark.parametrize("every", [1, 6])
def test_what_is_throttled_is_measured_again_and_marked_if_that_does_not_help(bundle: Path, every: int) -> None:
    """`every`: so many looks at the system it has counted once more. With 6 that is in every third measurement."""
    count = f"""
_looked = [0]
_really = condition

def condition():
    _looked[0] += 1
    return {{**_really(), "throttled": _looked[0] // {every}}}


class KernelProcess:"""
    hot = simulated(bundle, "hot.pyz", "session", "\nclass KernelProcess:", count)
    done = on_the_device(hot.name, "-o", "r.zip", cwd=bundle.parent)
    assert done.returncode == 0, done.stderr
    marks = {bool(line["throttled"]) for line in results_of(bundle.with_name("r.zip"))}
    assert marks == {every == 1}


def test_the_device_holds_no_more_tensors_than_a_candidate_has(bundle: Path) -> None:
    tensors = [
        {(json.dumps(t), i in c["outputs"]) for call in c["calls"] for i, t in enumerate(call)}
        for c in manifest_of(bundle)["candidates"]
    ]
    most = 2 + max(map(len, tensors))
    counts = f"self._loaded += 1\n        assert len(self._held) <= {most}, 'too many tensors'"
    done = on_the_device(
        simulated(bundle, "counting.pyz", "kernel_server", "self._loaded += 1", counts).name,
        "-o",
        "r.zip",
        cwd=bundle.parent,
    )
    assert done.returncode == 0, done.stderr
    assert not any("failed" in line for line in results_of(bundle.with_name("r.zip")))


@pytest.mark.sampled(2)
def test_what_was_measured_is_measured_again_only_into_another_file(bundle: Path) -> None:
    assert on_the_device(bundle.name, cwd=bundle.parent).returncode == 0
    before = bundle.with_name("results.zip").read_bytes()
    done = on_the_device(bundle.name, cwd=bundle.parent)
    assert (done.returncode, done.stderr) == (0, "results.zip is here already: to measure once more, give another -o\n")
    assert bundle.with_name("results.zip").read_bytes() == before
    assert on_the_device(bundle.name, "-o", "more.zip", cwd=bundle.parent).returncode == 0
    assert len(results_of(bundle.with_name("more.zip"))) == len(names(bundle))
