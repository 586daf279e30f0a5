"""The thread pool that runs kernels' parallel loops: every part once, whoever runs it."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tuner.devices import parallel
from tuner.devices.parallel import Pool, open_pool, pool_library


class Group(ctypes.Structure):
    _fields_ = (("handle", ctypes.c_void_p), ("tasks", ctypes.c_int32))


LAMBDA = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.POINTER(Group), ctypes.c_void_p)


@pytest.fixture(scope="module")
def pool() -> Pool:
    library = pool_library()
    assert library is not None
    found = open_pool(library)
    assert found is not None
    return found


def launch(pool: Pool, body: Callable[[int, int], int]) -> int:
    """Run `body(part, parts)` as a kernel's loop does."""
    return pool._library.edgetune_launch(LAMBDA(lambda part, group, _: body(part, group.contents.tasks)), None, 0)


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_every_part_runs_once(pool: Pool, threads: int) -> None:
    assert pool.threads(threads) == threads
    for _ in range(200):
        ran: Counter[int] = Counter()
        sizes = set()

        def body(part: int, parts: int, ran: Counter[int] = ran, sizes: set[int] = sizes) -> int:
            ran[part] += 1
            sizes.add(parts)
            return 0

        assert launch(pool, body) == 0
        (parts,) = sizes
        assert ran == Counter(range(parts))
        assert parts >= threads


def test_threads_may_rest_between_loops(pool: Pool) -> None:
    """Called back before the next loop, or by it."""
    pool.threads(3)
    for i in range(200):
        ran: Counter[int] = Counter()

        def body(part: int, _: int, ran: Counter[int] = ran) -> int:
            ran[part] += 1
            return 0

        if i % 3:
            pool.rest()
        if i % 2:
            pool.rise()
        assert launch(pool, body) == 0
        assert set(ran.values()) == {1}


def test_others_code_lets_threads_rest_by_address(pool: Pool) -> None:
    rest, rise = (ctypes.CFUNCTYPE(None)(address) for address in pool.waiting)
    pool.threads(2)
    for call in (rest, rise):
        ran: Counter[int] = Counter()

        def body(part: int, _: int, ran: Counter[int] = ran) -> int:
            ran[part] += 1
            return 0

        call()
        assert launch(pool, body) == 0
        assert set(ran.values()) == {1}


def test_more_than_one_thread_takes_part_and_a_stopped_one_delays_nobody(pool: Pool) -> None:
    pool.threads(2)
    caller, workers = threading.get_ident(), set()
    both = threading.Event()

    def body(_part: int, _parts: int) -> int:
        if threading.get_ident() == caller:
            both.wait(30)  # the caller's first part ends when the worker has begun
        else:
            workers.add(threading.get_ident())
            both.set()
        return 0

    assert launch(pool, body) == 0
    assert len(workers) == 1


def test_a_loop_inside_a_part_is_run_by_its_thread(pool: Pool) -> None:
    pool.threads(2)
    inner: Counter[int] = Counter()

    def body(_part: int, _parts: int) -> int:
        return launch(pool, lambda _, of: inner.update([of]) or 0)

    assert launch(pool, body) == 0
    assert set(inner) == {1}


def test_a_call_holds_its_thread_and_gives_it_back(pool: Pool) -> None:
    """Nested ones too; another thread is not concerned."""
    before = os.sched_getaffinity(0)
    core = max(before)
    sizes: list[int] = []

    def elsewhere() -> None:
        assert os.sched_getaffinity(0) == before

    pool.enter(2, core)
    assert os.sched_getaffinity(0) == {core}
    other = threading.Thread(target=elsewhere)
    os.sched_setaffinity(0, before)  # a new thread inherits its starter's cores
    other.start()
    other.join()
    os.sched_setaffinity(0, {core})
    pool.enter(3, -1)
    assert launch(pool, lambda _, of: sizes.append(of) or 0) == 0
    pool.leave()
    assert os.sched_getaffinity(0) == {core}
    pool.leave()
    assert os.sched_getaffinity(0) == before
    parts_of_two, parts_of_three = 32, 48
    assert set(sizes) == {parts_of_three}
    sizes.clear()
    pool.enter(2, -1)
    assert launch(pool, lambda _, of: sizes.append(of) or 0) == 0
    pool.leave()
    assert set(sizes) == {parts_of_two}


def test_callers_at_the_same_time_do_not_mix(pool: Pool) -> None:
    totals: list[int] = []

    def caller(number: int) -> None:
        pool.threads(2)
        for _ in range(100):
            seen: list[int] = []
            launch(pool, lambda part, parts, seen=seen: seen.append(1000 * parts + part) or 0)
            parts = seen[0] // 1000
            assert sorted(seen) == [1000 * parts + p for p in range(parts)]
        totals.append(number)

    threads = [threading.Thread(target=caller, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(totals) == [0, 1, 2, 3]


def test_a_failure_of_a_part_is_the_loops(pool: Pool) -> None:
    pool.threads(2)
    assert launch(pool, lambda part, parts: -3 if part == parts // 2 else 0) == -3
    assert launch(pool, lambda _part, _parts: 0) == 0


def test_a_forked_child_computes_alone() -> None:
    program = """
import os, sys, time
sys.path.insert(0, %r)
from tests.tuner.devices.test_parallel import launch, open_pool, pool_library
pool = open_pool(pool_library())
pool.threads(2)
launch(pool, lambda part, parts: 0)
time.sleep(0.2)  # the worker sleeps by now: what it waits for is copied
child = os.fork()
if child == 0:
    ran = []
    assert launch(pool, lambda part, parts: ran.append(part) or 0) == 0
    assert pool.threads(2) == 2
    whole = True
    for _ in range(4):
        time.sleep(0.1)
        again = []
        assert launch(pool, lambda part, parts: again.append(part) or 0) == 0
        whole = whole and sorted(again) == list(range(len(again))) and len(again) > 2
    os._exit(0 if len(ran) == 1 and whole else 1)
sys.exit(os.waitpid(child, 0)[1])
"""
    root = str(Path(__file__).parents[3])
    subprocess.run([sys.executable, "-c", program % root], check=True, timeout=120)


def test_without_a_compiler_or_on_another_system_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert pool_library() is None
    strange = tmp_path / "parallel-0123.so"
    strange.write_bytes(b"\x7fELF of another machine")
    assert open_pool(strange) is None


def test_a_compiler_that_fails_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "bin/cc"
    compiler.parent.mkdir()
    compiler.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\necho half > "$2"\nexit 1\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", f"{compiler.parent}:/bin:/usr/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert pool_library() is None
    assert not list((tmp_path / "cache").rglob("*.so"))


def test_it_is_compiled_once_and_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = pool_library()
    assert first is not None
    assert first.match(parallel.PATTERN)
    before = first.stat().st_mtime_ns
    assert pool_library() == first
    assert first.stat().st_mtime_ns == before
    assert os.listdir(first.parent) == [first.name]
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    assert pool_library() is None
