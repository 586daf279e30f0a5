"""Fill a bundle with the configs that a searcher would try next, for every task. Start at `make_bundle`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from templates.template import search_space, template_named
from tuner.devices import Device
from tuner.errors import NothingMeasured
from tuner.measure.boards.bundle import write_bundle
from tuner.measure.runner import Candidate, MeasureOptions
from tuner.measure.workers.cross_builder import CrossBuilder
from tuner.search import make_searcher
from tuner.session.proposing import task_seed
from tuner.session.task_trials import is_current
from tuner.tasks import Task
from tuner.versions import versions
from tuning_db.record import Failure, Trial
from tuning_db.store import Store


@dataclass(frozen=True)
class BundleOptions:
    """Says what goes into a bundle: up to `configs` configs of every task, which the searcher of this name proposes.
    `exact` forbids templates that round differently from the direct algorithm."""

    searcher: str
    configs: int
    seed: int = 0
    exact: bool = False


def make_bundle(
    tasks: Sequence[Task],
    device: Device,
    store: Store,
    path: Path,
    options: BundleOptions,
    progress: Callable[[Task, int], None] | None = None,
) -> int:
    """Write a bundle with new configs of every task to `path`, and return how many candidates it holds. The searcher
    goes on from what the store has of the device, so a bundle that is made after another was imported
    continues that one's search. Configs that cannot be built become trials of the store at once. `progress` is called
    with each task and the number of its candidates that were built. Raises BadInput, OSError, DatabaseError if the
    store cannot be written, and NothingMeasured if no candidate is left. In the last case no file is written."""
    measuring, seed = MeasureOptions(seed=options.seed), options.seed
    built: list[tuple[Candidate, Path]] = []
    with CrossBuilder(device, measuring) as cross_builder:
        preflight = cross_builder.preflight()
        for task in tasks:
            space = search_space(task.workload, device.target, exact=options.exact)
            if space is None:
                continue
            templates = {s.template for s in space.spaces}
            history = [t for t in store.trials(task.workload, device.key) if is_current(t, templates)]
            searcher = make_searcher(options.searcher, space, task_seed(seed, task), history)
            proposed = searcher.propose(options.configs)
            candidates = [Candidate(task.workload, config) for config in proposed]
            made = cross_builder.build(candidates)
            found = [(c, m) for c, m in zip(candidates, made, strict=True) if not isinstance(m, Failure)]
            store.add_many(
                _failed(c, m, device, seed=seed, searcher=options.searcher)
                for c, m in zip(candidates, made, strict=True)
                if isinstance(m, Failure)
            )
            built += found
            if progress is not None:
                progress(task, len(found))
        if not built:
            raise NothingMeasured("there is nothing to measure: no config is left that was not tried and can be built")
        write_bundle(path, device, built, preflight=preflight, options=measuring)
    return len(built)


def _failed(candidate: Candidate, failure: Failure, device: Device, *, seed: int, searcher: str) -> Trial:
    """Return the trial of a candidate that cannot be built."""
    return Trial(
        candidate.workload,
        device.key,
        candidate.config,
        template_named(candidate.config.template).version,
        failure=failure,
        seed=seed,
        searcher=searcher,
        versions=versions(),
    )
