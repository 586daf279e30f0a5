"""`UnderWay` keeps the builds and the measurements that run at the same time, in threads."""

from __future__ import annotations

import queue
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from tuner.measure.workers.batch import Building
from tuning_db.record import Trial


class UnderWay:
    """Batches that are built one after the other, and their candidates, `width` of which are measured at a time."""

    def __init__(self, width: int) -> None:
        self._measuring, self._builds = ThreadPoolExecutor(width), ThreadPoolExecutor(1)
        self._buildings: list[Building] = []
        self._libraries: dict[Future[Trial], Path] = {}
        self._done: queue.SimpleQueue[Future[Trial]] = queue.SimpleQueue()

    def __len__(self) -> int:
        """Return how many candidates were begun and their trials not fetched yet."""
        return len(self._libraries)

    @property
    def ready(self) -> int:
        """Return how many trials have ended and were not fetched yet."""
        return self._done.qsize()

    def begin(self, building: Building, measure: Callable[[int], Trial]) -> None:
        """Have a batch built after the batches before it, and `measure` called with the index of each of its
        candidates, in threads. It is to wait for that candidate's build."""
        self._buildings = [*(b for b in self._buildings if not b.is_done), building]
        self._builds.submit(building.ahead)
        for place, library in enumerate(building.libraries):
            future = self._measuring.submit(measure, place)
            self._libraries[future] = library
            future.add_done_callback(self._done.put)

    def next(self) -> Trial:
        """Return the next trial that ends. Raises what measuring raises."""
        future = self._done.get()
        trial = future.result()
        del self._libraries[future]
        return trial

    def close(self) -> list[Path]:
        """End what is under way, and return the libraries that it may have left."""
        for building in self._buildings:
            building.close()  # else threads that wait for one build would wait for all of them
        self._builds.shutdown()
        self._measuring.shutdown(cancel_futures=True)
        return list(self._libraries.values())
