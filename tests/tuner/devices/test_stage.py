"""Groups of kernels on parts of the thread pool's threads: each runs once and in order, loops stay in their group, and
an error comes out when all have ended."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import pytest
import tvm_ffi

from tests.tuner.devices.test_parallel import launch
from tuner.devices.parallel import Pool, open_pool, pool_library
from tuner.devices.parallel.stage import STAGE, offer_stages, stage_arguments

PARTS = 16  # of a loop, per thread (pool.c)

Kernel = Callable[..., None]


@pytest.fixture(scope="module")
def pool() -> Pool:
    library = pool_library()
    assert library is not None
    found = open_pool(library)
    assert found is not None
    offer_stages(found)
    return found


def run(groups: Sequence[tuple[int, Sequence[Kernel]]]) -> None:
    """Groups as their works and kernels, each of which is given its number in its group."""
    calls = [(w, [("", tvm_ffi.convert(k), (i + 1,)) for i, k in enumerate(ks)]) for w, ks in groups]
    tvm_ffi.get_global_func(STAGE)(*stage_arguments(calls))


@pytest.mark.parametrize("threads", [1, 2, 3, 6])
@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_every_kernel_runs_once_and_in_order(pool: Pool, threads: int, count: int) -> None:
    """With fewer threads than groups, too; whoever is late."""
    random = Random(threads * 10 + count)
    pool.threads(threads)
    for _ in range(30):
        ran: list[list[int]] = [[] for _ in range(count)]
        delays = [[random.choice((0, 0, 1e-4, 1e-3)) for _ in range(3)] for _ in range(count)]

        def kernel(number: int, group: int, ran=ran, delays=delays) -> None:
            time.sleep(delays[group][number - 1])
            ran[group].append(number)

        run([(g + 1, [lambda i, g=g: kernel(i, g)] * 3) for g in range(count)])
        assert ran == [[1, 2, 3]] * count


def test_groups_run_at_the_same_time(pool: Pool) -> None:
    """Each waits for all others."""
    pool.threads(3)
    met = threading.Barrier(3, timeout=60)

    def kernel(_: int) -> None:
        met.wait()

    run([(1, [kernel])] * 3)
    assert not met.broken


@pytest.mark.parametrize(
    ("works", "threads", "shares"),
    [
        ((1, 1), 2, (1, 1)),
        ((1, 3), 4, (1, 3)),
        ((1, 9), 4, (1, 3)),
        ((2, 1, 5), 8, (2, 1, 5)),
        ((1, 1, 1), 2, (1, 1, 1)),
    ],
)
def test_loops_have_their_groups_threads(pool: Pool, works: tuple, threads: int, shares: tuple) -> None:
    """As many parts as that many threads make of a loop (one: the loop as it is), each run once."""
    pool.threads(threads)
    for _ in range(20):
        seen: list[Counter[int]] = [Counter() for _ in works]
        parts: list[set[int]] = [set() for _ in works]

        def loop(group: int, seen=seen, parts=parts) -> None:
            def body(part: int, of: int) -> int:
                seen[group].update([part])
                parts[group].add(of)
                return 0

            assert launch(pool, body) == 0

        run([(w, [lambda _, g=g: loop(g)] * 2) for g, w in enumerate(works)])
        for group, share in enumerate(shares):
            expected = 1 if share == 1 else PARTS * share
            assert parts[group] == {expected}
            assert seen[group] == Counter(dict.fromkeys(range(expected), 2))


def test_threads_help_with_their_groups_loops(pool: Pool) -> None:
    """A part of a loop that waits for another thread's."""
    pool.threads(4)
    both = threading.Event()
    leader, workers = [], set()

    def body(_part: int, _parts: int) -> int:
        if threading.get_ident() == leader[0]:
            both.wait(60)
        else:
            workers.add(threading.get_ident())
            both.set()
        return 0

    def kernel(_: int) -> None:
        leader.append(threading.get_ident())
        assert launch(pool, body) == 0

    run([(1, [lambda _: None]), (3, [kernel])])
    assert workers
    assert leader[0] not in workers


def test_an_error_comes_out_when_all_groups_have_ended(pool: Pool) -> None:
    pool.threads(3)
    for failing in range(3):
        ended: Counter[int] = Counter()

        def kernel(number: int, group: int, ended=ended, failing=failing) -> None:
            if group == failing and number == 2:
                raise ValueError(f"group {group} is broken")
            time.sleep(1e-3)
            ended[group] += 1

        with pytest.raises(ValueError, match=f"group {failing} is broken"):
            run([(1, [lambda i, g=g: kernel(i, g)] * 4) for g in range(3)])
        assert ended == Counter({g: 1 if g == failing else 4 for g in range(3)})
    run([(1, [lambda _: None])] * 3)


def test_of_several_errors_there_is_one(pool: Pool) -> None:
    pool.threads(2)

    def broken(_: int) -> None:
        raise RuntimeError("broken on purpose")

    for _ in range(20):
        with pytest.raises(RuntimeError, match="on purpose"):
            run([(1, [broken])] * 4)


def test_callers_at_the_same_time_do_not_mix(pool: Pool) -> None:
    """Stages of one, loops of another."""
    ended = []

    def stages() -> None:
        pool.threads(3)
        for _ in range(30):
            ran: Counter[int] = Counter()
            run([(1, [lambda _, g=g, ran=ran: ran.update([g])] * 2) for g in range(3)])
            assert ran == Counter({0: 2, 1: 2, 2: 2})
        ended.append("stages")

    def loops() -> None:
        pool.threads(3)
        for _ in range(100):
            seen: list[int] = []
            assert launch(pool, lambda part, _, seen=seen: seen.append(part) or 0) == 0
            assert sorted(seen) == list(range(len(seen)))
        ended.append("loops")

    threads = [threading.Thread(target=target) for target in (stages, loops, stages)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(ended) == ["loops", "stages", "stages"]


@pytest.mark.usefixtures("pool")
def test_what_is_no_stage_is_refused() -> None:
    function, stage = tvm_ffi.convert(lambda _: None), tvm_ffi.get_global_func(STAGE)
    whole = stage_arguments([(1, [("", function, (1,))])])
    stage(*whole)
    for wrong in ([], whole[:-1], [*whole, 1], [0], [1, 0, *whole[2:]], [2, *whole[1:]], [1, 1, 1, 1, "", 3, 4]):
        with pytest.raises(ValueError, match="not groups of kernels"):
            stage(*wrong)


def test_without_a_pool_kernels_run_one_after_the_other(pool: Pool) -> None:
    ran = []
    try:
        offer_stages(None)
        run([(1, [lambda i, g=g: ran.append((g, i))] * 2) for g in range(2)])
    finally:
        offer_stages(pool)
    assert ran == [(0, 1), (0, 2), (1, 1), (1, 2)]


def test_a_forked_child_runs_them_alone() -> None:
    program = """
import os, sys
sys.path.insert(0, %r)
from tests.tuner.devices.test_stage import offer_stages, open_pool, pool_library, run
pool = open_pool(pool_library())
offer_stages(pool)
pool.threads(3)
run([(1, [lambda i: None])] * 3)
child = os.fork()
if child == 0:
    ran = []
    run([(1, [lambda i, g=g: ran.append(g)] * 2) for g in range(3)])
    os._exit(0 if ran == [0, 0, 1, 1, 2, 2] else 1)
sys.exit(os.waitpid(child, 0)[1])
"""
    root = str(Path(__file__).parents[3])
    subprocess.run([sys.executable, "-c", program % root], check=True)
