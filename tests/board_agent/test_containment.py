"""What machine code from a host can do on a board: its kernel's work, and none of what these candidates try."""

from __future__ import annotations

import contextlib
import math
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil
import pytest

from board_agent.topology import memory_bytes
from tests.board_agent.support import Agent, eventually, paired_agent
from tests.board_agent.test_access import can_be_used
from tuner.devices.board import Board, KernelDied, Link, NotAnswered

DID, COULD_NOT = 42, 7  # how a candidate's process ends
SETTINGS = {"device": "cpu", "form": "library", "threads": 1, "memory_bytes": 1 << 30}
SOURCE = """
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <stddef.h>
#include <stdlib.h>
#include <sched.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
static int reads(const char* path) { char c; int f = open(path, O_RDONLY); return f >= 0 && read(f, &c, 1) == 1; }
static int writes(const char* path) {
    int f = open(path, O_WRONLY | O_CREAT, 0600);
    return f >= 0 && write(f, "x", 1) == 1;
}
static int connects(int port) {
    struct sockaddr_in to = {AF_INET, htons(port)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return connect(socket(AF_INET, SOCK_STREAM, 0), (struct sockaddr*)&to, sizeof to) == 0;
}
static int forks(void) {
    for (int i = 0; i < 2000; ++i) {
        pid_t child = fork();
        if (child < 0) return 0;
        if (child == 0) { pause(); _exit(0); }
    }
    return 1;
}
static int kills(void) { return kill(getppid(), 0) == 0; }
static int traces(void) { return ptrace(PTRACE_ATTACH, getppid(), 0, 0) == 0; }
static int fills(void) {
    static char block[1 << 20];
    int f = open("full", O_WRONLY | O_CREAT, 0600);
    for (int i = 0; i < 1200; ++i) if (write(f, block, sizeof block) != sizeof block) return 0;
    return 1;
}
static int maps(double bytes) {  /* addresses, not memory */
    return mmap(0, (size_t)bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) != MAP_FAILED;
}
static int lifts(double bytes) {
    struct rlimit all = {RLIM_INFINITY, RLIM_INFINITY};
    if (setrlimit(RLIMIT_AS, &all) != 0) {
        getrlimit(RLIMIT_AS, &all);
        all.rlim_cur = all.rlim_max;
        setrlimit(RLIMIT_AS, &all);
    }
    return maps(bytes);
}
static int says(const char* path, const char* text) {
    char found[64] = {0};
    int f = open(path, O_RDONLY);
    return f >= 0 && read(f, found, 63) > 0 && strcmp(found, text) == 0;
}
static int connects_by_name(const char* name) {  /* of an abstract socket */
    struct sockaddr_un to = {AF_UNIX};
    strcpy(to.sun_path + 1, name);
    return connect(socket(AF_UNIX, SOCK_STREAM, 0), (struct sockaddr*)&to,
                   offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name)) == 0;
}
static int connects_by_path(const char* path) {
    struct sockaddr_un to = {AF_UNIX};
    strcpy(to.sun_path, path);
    return connect(socket(AF_UNIX, SOCK_STREAM, 0), (struct sockaddr*)&to, sizeof to) == 0;
}
static int shares(const char* name) {  /* memory that stays when the process has ended */
    int f = shm_open(name, O_RDWR | O_CREAT, 0666);
    return f >= 0 && ftruncate(f, 4096) == 0 && shmget(0x65647473, 4096, IPC_CREAT | 0666) >= 0;
}
static int has_variable(const char* name) { return getenv(name) != 0; }
static int makes_namespace(int flags) { return unshare(flags) == 0; }
static int clones_namespace(int flags) {
    static char stack[65536];
    return clone((int (*)(void*))pause, stack + sizeof stack, flags | SIGCHLD, 0) >= 0;
}
static int speaks(void) {  /* as if it answered, and no further */
    struct stat of;
    for (int f = 3; f < 64; ++f) if (fstat(f, &of) == 0 && S_ISSOCK(of.st_mode)) write(f, "edt1", 4);
    return pause();
}
static int stops_later(void) {  /* when it has answered */
    if (fork() == 0) { usleep(300000); kill(getppid(), SIGSTOP); _exit(0); }
    return -1;
}
int __tvm_ffi_main(void* self, const void* arguments, int count, void* result) {
    signal(SIGXFSZ, SIG_IGN);
    int did = (%(attempt)s);
    if (did < 0) return 0;
    _exit(did ? 42 : 7);
}
"""


def candidate(attempt: str, folder: Path) -> bytes:
    source, library = folder / "k.c", folder / "k.so"
    source.write_text(SOURCE % {"attempt": attempt})
    subprocess.run(["gcc", "-shared", "-fPIC", "-w", "-o", library, source], check=True)
    return library.read_bytes()


def outcome(board: Board, library: bytes, seconds: float = 30.0, settings: dict[str, Any] = SETTINGS) -> str:
    """How the process that ran it ended."""
    eventually(lambda: can_be_used(board))
    with Link(board) as link:
        link.ask({"do": "start", "settings": settings})
        link.ask({"do": "load", "id": 1}, [library])
        with pytest.raises(KernelDied) as died:
            link.ask({"do": "call", "function": 1, "arguments": []}, seconds=seconds)
        started, _ = link.ask({"do": "start", "settings": SETTINGS})  # the board is as good as before
        assert started["contained"]
    return str(died.value)


@pytest.fixture(scope="module")
def contained(served: tuple[Agent, Board]) -> set[str]:
    """The layers that hold on this system."""
    with Link(served[1]) as link:
        return set(link.ask({"do": "start", "settings": SETTINGS})[0]["contained"])


def test_what_a_candidate_may_do(served, tmp_path: Path) -> None:
    for allowed in ('reads("/proc/self/status")', 'writes("scratch")'):
        assert f"status {DID}" in outcome(served[1], candidate(allowed, tmp_path)), allowed


def test_read_the_passwords(served, tmp_path: Path, contained: set[str]) -> None:
    if not contained & {"user", "files"}:
        pytest.skip("this system holds neither users nor files apart")
    assert f"status {COULD_NOT}" in outcome(served[1], candidate('reads("/etc/shadow")', tmp_path))


def test_read_the_agents_keys(served, tmp_path: Path, contained: set[str]) -> None:
    if not contained & {"user", "files"}:
        pytest.skip("this system holds neither users nor files apart")
    (key,) = (served[0].folder / "agent").rglob("board.pem")
    assert f"status {COULD_NOT}" in outcome(served[1], candidate(f'reads("{key}")', tmp_path))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("where", ["/tmp/edgetune-escaped", "/dev/shm/edgetune-escaped", "../edgetune-escaped"])
def test_write_outside_its_folder(served, tmp_path: Path, contained: set[str], where: str) -> None:
    if "files" not in contained:
        pytest.skip("this system has no Landlock")
    assert f"status {COULD_NOT}" in outcome(served[1], candidate(f'writes("{where}")', tmp_path))


def test_connect_out(served, tmp_path: Path, contained: set[str]) -> None:
    if not contained & {"network", "tcp"}:
        pytest.skip("this system has neither network namespaces nor Landlock for TCP")
    assert f"status {COULD_NOT}" in outcome(served[1], candidate(f"connects({served[1].port})", tmp_path))


def test_share_memory_with_others(served, tmp_path: Path, contained: set[str]) -> None:
    """Its own ends with it, and it does not see what others have."""
    if "memory" not in contained:
        pytest.skip("this system has no namespaces for shared memory")
    victim = Path("/dev/shm", f"edgetune-test-{os.getpid()}")
    victim.write_text("mine")
    try:
        victim.chmod(0o666)
        segments = Path("/proc/sysvipc/shm").read_text()
        assert f"status {COULD_NOT}" in outcome(served[1], candidate(f'reads("{victim}")', tmp_path))
        outcome(served[1], candidate('shares("/edgetune-escaped") + shmget(0x65647473, 4096, IPC_CREAT)', tmp_path))
        assert victim.read_text() == "mine"
    finally:
        victim.unlink()
    assert not Path("/dev/shm/edgetune-escaped").exists()
    keys = [line.split()[0] for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]]
    assert str(0x65647473) not in keys, segments


@pytest.mark.parametrize("how", ["makes_namespace(CLONE_NEWUSER)", "clones_namespace(CLONE_NEWUSER)"])
def test_become_root_in_a_namespace(served, tmp_path: Path, contained: set[str], how: str) -> None:
    assert "namespaces" in contained
    assert f"status {COULD_NOT}" in outcome(served[1], candidate(how, tmp_path))


def test_read_the_agents_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGETUNE_TEST_PASSED", "yes")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with paired_agent(tmp_path) as (_, board):
        for name, end in (("AWS_SECRET_ACCESS_KEY", COULD_NOT), ("EDGETUNE_TEST_PASSED", DID), ("PATH", DID)):
            assert f"status {end}" in outcome(board, candidate(f'has_variable("{name}")', tmp_path)), name


def test_fork_without_end(served, tmp_path: Path, contained: set[str]) -> None:
    assert "processes" in contained
    assert f"status {COULD_NOT}" in outcome(served[1], candidate("forks()", tmp_path))
    eventually(lambda: not benches_of(served[0]))


def benches_of(agent: Agent) -> list[psutil.Process]:
    """Processes of an agent that run kernels, and what those started."""
    found = []
    for process in psutil.Process(agent.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            found += [process] if "board_agent.kernel_server" in process.cmdline() else []
    return found


def test_kill_or_look_into_the_session(served, tmp_path: Path, contained: set[str]) -> None:
    if "user" not in contained:
        pytest.skip("the agent is not root: all of its processes are one user's")
    assert f"status {COULD_NOT}" in outcome(served[1], candidate("kills()", tmp_path))
    assert f"status {COULD_NOT}" in outcome(served[1], candidate("traces()", tmp_path))


def test_take_more_memory_than_the_board_has(served, tmp_path: Path) -> None:
    """Neither by lifting the limit nor where the host allows it."""
    installed = memory_bytes()
    assert f"status {COULD_NOT}" in outcome(served[1], candidate(f"lifts({1.5 * installed})", tmp_path))
    generous = {**SETTINGS, "memory_bytes": 1 << 50}
    for share, end in ((0.5, DID), (0.9, COULD_NOT)):
        attempt = candidate(f"maps({share * installed})", tmp_path)
        assert f"status {end}" in outcome(served[1], attempt, settings=generous)


def test_who_is_ended_first_where_memory_runs_out(served, tmp_path: Path) -> None:
    asked = """says("/proc/self/oom_score_adj", "1000\\n")"""
    assert f"status {DID}" in outcome(served[1], candidate(asked, tmp_path))


def test_connect_to_an_abstract_socket(served, tmp_path: Path, contained: set[str]) -> None:
    if not contained & {"network", "scope"}:
        pytest.skip("this system has neither network namespaces nor Landlock for abstract sockets")
    name = f"edgetune-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{name}")
        listener.listen()
        assert f"status {COULD_NOT}" in outcome(served[1], candidate(f'connects_by_name("{name}")', tmp_path))
        if "scope" in contained:
            assert "PermissionError" in confined(f"socket.socket(socket.AF_UNIX).connect('\\0{name}')", tmp_path)


def confined(statement: str, folder: Path) -> str:
    """What a process says that is confined in the network that it came from."""
    text = f"import socket; from board_agent.sandbox import confine; confine({str(folder)!r}); {statement}"
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False).stderr


def test_what_is_not_contained_is_told(served, tmp_path: Path) -> None:
    """A Unix socket with a path, that everybody may write to: SECURITY.md says so, and has to be changed with this."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, socket.socket(socket.AF_UNIX) as listener:
        path = f"{folder}/open"
        listener.bind(path)
        listener.listen()
        os.chmod(folder, 0o755)
        os.chmod(path, 0o777)
        assert f"status {DID}" in outcome(served[1], candidate(f'connects_by_path("{path}")', tmp_path))
    told = " ".join((Path(__file__).parents[2] / "SECURITY.md").read_text().split())
    assert "Unix sockets with a path" in told


def test_fill_the_disk(served, tmp_path: Path) -> None:
    assert f"status {COULD_NOT}" in outcome(served[1], candidate("fills()", tmp_path))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("attempt", ["pause()", "speaks()"])
def test_never_return(served, tmp_path: Path, attempt: str) -> None:
    eventually(lambda: can_be_used(served[1]))
    with Link(served[1]) as link:
        link.ask({"do": "start", "settings": SETTINGS})
        link.ask({"do": "load", "id": 1}, [candidate(attempt, tmp_path)])
        with pytest.raises(NotAnswered, match=r"within 1\.5 s"):
            link.ask({"do": "call", "function": 1, "arguments": []}, seconds=1.5)  # longer than between signs of life
        link.ask({"do": "start", "settings": SETTINGS})


def test_stop_listening(served, tmp_path: Path) -> None:
    """The session gives up a request that its process does not take, and its host hears of it as it does otherwise."""
    eventually(lambda: can_be_used(served[1]))
    with Link(served[1]) as link:
        link.ask({"do": "start", "settings": SETTINGS})
        link.ask({"do": "load", "id": 1}, [candidate("stops_later()", tmp_path)])
        link.ask({"do": "call", "function": 1, "arguments": []})
        eventually(lambda: any(p.status() == psutil.STATUS_STOPPED for p in benches_of(served[0])))
        given = {"id": 2, "shape": [1 << 22], "dtype": "float32", "part": 0}
        seconds = math.ceil(link.silence_seconds) + 1  # longer than a silence may be
        with pytest.raises(NotAnswered, match=f"within {seconds} s"):
            link.ask({"do": "put", "tensors": [given]}, [bytes(4 << 22)], seconds=seconds)
        link.ask({"do": "start", "settings": SETTINGS})


def test_crash(served, tmp_path: Path) -> None:
    assert "signal 11" in outcome(served[1], candidate("*(volatile int*)8", tmp_path))
