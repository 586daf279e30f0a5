"""Boards as network namespaces: each with a link of its own to this host, that can be cut, a small disk, and a clock
that can be set where EDGETUNE_TEST_FAKETIME names libfaketimeMT.so.1 (or Debian's libfaketime is installed).

Needs root, iproute2 and a kernel that lets network namespaces be made: `why_not` says what is missing.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

from tuner.devices.board import Board, Boards, Pairing
from tuner.devices.board.packing import write_agent

PORT = 9190
DISK = "64m"
_MODULE = ("-m", "board_agent.serve")
_FAKETIME = os.environ.get(
    "EDGETUNE_TEST_FAKETIME", f"/usr/lib/{os.uname().machine}-linux-gnu/faketime/libfaketimeMT.so.1"
)
CLOCKS = Path(_FAKETIME).exists()  # can be set


def run(*words: object) -> None:
    subprocess.run([str(word) for word in words], check=True, capture_output=True)


def why_not() -> str | None:
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "ip is missing: apt-get install iproute2"
    with tempfile.TemporaryDirectory() as folder:
        try:
            run("ip", "netns", "add", "edgetune-probe")
            run("ip", "netns", "del", "edgetune-probe")
            run("ip", "link", "add", "etprobe", "type", "veth", "peer", "name", "etprobe2")
            run("ip", "link", "del", "etprobe")
            run("mount", "-t", "tmpfs", "tmpfs", folder)
            run("umount", folder)
        except subprocess.CalledProcessError as error:
            return f"no network namespaces, links or file systems can be made here: {error.stderr.decode().strip()}"
    return None


def write_other_agent(path: Path, version: int | None = None) -> None:
    """The agent as one file, which may be of another version of the protocol."""
    write_agent(path)
    with ZipFile(path) as made:
        files = {name: made.read(name) for name in made.namelist()}
    if version is not None:
        wire = re.sub(rb"(?m)^VERSION = \d+", b"VERSION = %d" % version, files["board_agent/wire.py"])
        files["board_agent/wire.py"] = wire
    with ZipFile(path, "w") as changed:
        for name, content in files.items():
            changed.writestr(name, content)


class Namespace:
    """A board: an agent in a namespace, on a disk of its own. `program`: what Python is to run as its agent."""

    program: tuple[str, ...] = _MODULE

    def __init__(self, name: str, number: int, folder: Path) -> None:
        self.name, self._space, self._link = name, f"edgetune-{name}", f"et{number}"
        self.address, self.host = f"10.83.{number}.2", f"10.83.{number}.1"
        self._folder = folder / name
        self._folder.mkdir(parents=True)
        self.disk = Path(tempfile.mkdtemp(prefix=f"{name}-", dir="/tmp"))  # where everybody may enter
        self._process: subprocess.Popen[str] | None = None
        self.set_clock("+0")
        run("mount", "-t", "tmpfs", "-o", f"size={DISK},mode=1777", "tmpfs", self.disk)
        self._remove_left()
        run("ip", "netns", "add", self._space)
        run("ip", "link", "add", self._link, "type", "veth", "peer", "name", "eth0", "netns", self._space)
        run("ip", "addr", "add", f"{self.host}/24", "dev", self._link)
        run("ip", "link", "set", self._link, "up")
        # With the link down: or packets to the board took the way to everywhere else, and somebody might answer there.
        self._nowhere = ("unreachable", f"10.83.{number}.0/24", "metric", "9999")
        run("ip", "route", "replace", *self._nowhere)
        for words in (("link", "set", "lo", "up"), ("addr", "add", f"{self.address}/24", "dev", "eth0")):
            run("ip", "-n", self._space, *words)
        run("ip", "-n", self._space, "link", "set", "eth0", "up")

    def _remove_left(self) -> None:
        """Remove what a killed run has left of this board, unless something still runs in it."""
        listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
        if self._space in (line.partition(" ")[0] for line in listed.splitlines()) and not self._pids():
            run("ip", "netns", "del", self._space)

    def cut(self) -> None:
        run("ip", "link", "set", self._link, "down")

    def mend(self) -> None:
        run("ip", "link", "set", self._link, "up")

    def set_clock(self, by: str) -> None:
        """Its date, from now on, by so much from ours, such as "+10y"; nothing happens where clocks cannot be set."""
        (self._folder / "clock").write_text(by)

    def _clock(self) -> dict[str, str]:
        """The environment of a process with that clock. What counts seconds counts on, as it does on a real board."""
        if not CLOCKS:
            return {}
        alone = dict.fromkeys(("FAKETIME_DONT_FAKE_MONOTONIC", "FAKETIME_NO_CACHE", "NO_FAKE_STAT"), "1")
        return {**alone, "LD_PRELOAD": _FAKETIME, "FAKETIME_TIMESTAMP_FILE": str(self._folder / "clock")}

    def start(self, *more: str) -> None:
        """Returns when the agent listens."""
        agent = [*self.program, "--address", "0.0.0.0", "--folder", str(self._folder / "agent"), *more]
        with open(self._folder / "agent.log", "a") as log:
            self._process = subprocess.Popen(
                ["ip", "netns", "exec", self._space, sys.executable, *agent],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, "TMPDIR": str(self.disk), "PYTHONPATH": os.pathsep.join(sys.path), **self._clock()},
            )
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("listening on"):
                return
        raise AssertionError((self._folder / "agent.log").read_text())

    def pair(self, boards: Boards) -> Board:
        with Pairing(boards, self.name, self.host) as pairing:
            found: list[Board] = []
            waiting = threading.Thread(target=lambda: found.append(pairing.wait(PORT)))
            waiting.start()
            self.start("--pair", str(pairing.code))
            waiting.join()
        return found[0]

    def kill_agent(self) -> None:
        """The agent alone; what it started ends with it."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._ended()

    def upgrade(self, version: int | None = None) -> None:
        """The agent ends, and another copy of it comes in its place, of another version of the protocol or the same."""
        self.kill_agent()
        write_other_agent(self.disk / "agent.pyz", version)
        self.program = (str(self.disk / "agent.pyz"),)
        self.start()

    def downgrade(self) -> None:
        """The agent ends, and comes back as it was at first."""
        self.kill_agent()
        self.program = _MODULE
        self.start()

    def kill_bench(self) -> None:
        """The process that runs kernels."""
        for pid in self._pids():
            with contextlib.suppress(OSError):
                if b"board_agent.kernel_server" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)

    def power_off(self) -> None:
        """All at once, and the disk's contents with it."""
        self.cut()
        for pid in self._pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._ended()
        self.program = _MODULE
        for left in self.disk.iterdir():
            shutil.rmtree(left, ignore_errors=True)

    def power_on(self) -> None:
        self.mend()
        self.start()

    @contextlib.contextmanager
    def full_disk(self) -> Iterator[None]:
        filler = self.disk / "filler"
        with contextlib.suppress(OSError), open(filler, "wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 20))
        try:
            yield
        finally:
            filler.unlink(missing_ok=True)

    def _pids(self) -> list[int]:
        """Of this namespace, and of those that gave up the network and are children of such."""
        listed = subprocess.run(["ip", "netns", "pids", self._space], capture_output=True, text=True, check=True)
        found = [int(pid) for pid in listed.stdout.split()]
        for pid in list(found):
            children = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False)
            found += [int(child) for child in children.stdout.split()]
        return found

    def _ended(self) -> None:
        if self._process is not None:
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None

    def remove(self) -> None:
        self.kill_agent()
        for words in (
            ("ip", "netns", "del", self._space),
            ("ip", "route", "del", *self._nowhere),
            ("umount", "-l", self.disk),
        ):
            with contextlib.suppress(subprocess.CalledProcessError):
                run(*words)
        shutil.rmtree(self.disk, ignore_errors=True)
