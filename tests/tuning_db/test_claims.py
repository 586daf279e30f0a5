"""Claims: of many who want a task one has it, until it gives it back, dies, or is silent for its lease's length."""

from __future__ import annotations

import multiprocessing
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

import pytest
from sqlalchemy import update

from tests.tuning_db.made import CONV, LAPTOP, config, trial
from tests.tuning_db.test_store import BOARD, DENSE
from tuning_db import schema
from tuning_db.claims import Claims, trial_counts
from tuning_db.record import Workload
from tuning_db.store import Store, open_db

LONG = 1000.0


def test_one_of_two_has_a_task_until_it_gives_it_back(store: Store) -> None:
    one, two = Claims(store, LAPTOP, "host:1/a", LONG), Claims(store, LAPTOP, "host:2/b", LONG)
    assert one.take(CONV)
    assert not two.take(CONV)
    assert two.of_others() == {CONV.key: "host:1/a"}
    assert one.of_others() == {}
    assert one.take(CONV)  # again
    assert two.take(DENSE)
    assert not one.take(DENSE)  # and CONV is given back by trying
    assert two.take(CONV)
    assert one.take(DENSE)
    one.give_back()
    two.give_back()
    assert one.of_others() == two.of_others() == {}


def test_several_are_had_at_a_time_by_keeping_them(store: Store) -> None:
    one, two = Claims(store, LAPTOP, "host:1/a", LONG), Claims(store, LAPTOP, "host:2/b", LONG)
    assert one.take(CONV)
    assert one.take(DENSE, keep=[CONV])
    assert one.renew() == {CONV.key, DENSE.key}
    assert not two.take(CONV)
    assert not two.take(DENSE)
    assert one.take(DENSE)  # and CONV is not kept
    assert one.renew() == {DENSE.key}
    assert two.take(CONV)


def test_another_device_is_another_task(store: Store) -> None:
    one, two = Claims(store, LAPTOP, "host:1/a", LONG), Claims(store, BOARD, "host:2/b", LONG)
    assert one.take(CONV)
    assert two.take(CONV)
    assert one.of_others() == two.of_others() == {}


def test_a_silent_owners_lease_runs_out_and_what_it_had_in_flight_is_forgotten(store: Store) -> None:
    one, two = Claims(store, LAPTOP, "far:1/a", 0.3), Claims(store, LAPTOP, "near:2/b", LONG)
    assert one.take(CONV)
    store.begin(CONV, LAPTOP, [config(1), config(2)])
    with store.writing() as connection:
        connection.execute(update(schema.in_flight).values(owner="far:1"))
    store.begin(DENSE, LAPTOP, [config(1)])
    assert not two.take(CONV)
    assert one.renew()
    time.sleep(0.35)
    assert two.of_others() == {}
    assert two.take(CONV)
    assert [entry.workload for entry in store.in_flight()] == [DENSE]
    assert not one.renew()  # too late
    assert one.of_others() == {CONV.key: "near:2/b"}
    assert not one.take(CONV)


def test_renewing_keeps_a_claim(store: Store) -> None:
    one, two = Claims(store, LAPTOP, "host:1/a", 0.5), Claims(store, LAPTOP, "host:2/b", LONG)
    assert one.take(CONV)
    for _ in range(6):
        time.sleep(0.2)
        assert one.renew()
        assert not two.take(CONV)


def test_nobody_waits_for_an_owner_that_is_known_to_be_dead(store: Store) -> None:
    one, two = Claims(store, LAPTOP, "host:1/a", LONG), Claims(store, LAPTOP, "host:2/b", LONG)
    assert one.take(CONV)
    assert not two.take(CONV, lambda owner: owner == "host:9/x")
    assert two.take(CONV, lambda owner: owner == "host:1/a")


def _take_all(url: str, owner: str, tasks: int) -> list[int]:
    with open_db(url) as store:
        taken = []
        for number in range(tasks):
            claims = Claims(store, LAPTOP, f"{owner}.{number}", LONG)
            if claims.take(Workload("conv2d", {"batch": number})):
                taken.append(number)
        return taken


@pytest.mark.sampled(2)
def test_of_eight_processes_that_want_the_same_tasks_each_is_had_by_one(url: str) -> None:
    open_db(url).close()
    with ProcessPoolExecutor(8, multiprocessing.get_context("forkserver")) as pool:
        asked = [pool.submit(_take_all, url, f"host:{number}/x", 25) for number in range(8)]
        taken = Counter(number for future in asked for number in future.result())
    assert taken == Counter(range(25))


def test_trials_are_counted_by_workload_on_one_device(store: Store) -> None:
    half = replace(CONV, dtype="float16")
    store.add_many(
        [trial(1), trial(2, None), trial(3, device=BOARD), trial(4, workload=DENSE), trial(5, workload=half)]
    )
    assert trial_counts(store, [CONV, DENSE], LAPTOP) == {CONV.key: 2, DENSE.key: 1}
