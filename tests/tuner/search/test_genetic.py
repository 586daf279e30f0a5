"""Genetic search: selection by the wheel, elites, generations, convergence, history."""

from __future__ import annotations

import math
from collections import Counter

from templates.space import Knob, SearchSpace, Space
from tests.tuner.search.landscape import landscape, trial_of
from tuner.search.genetic import GeneticOptions, GeneticSearcher
from tuning_db.record import Config, Trial

LINE = SearchSpace((Space("line", (Knob("i", tuple(range(400))), Knob("j", tuple(range(400))))),))


def config(i: int, j: int = 0) -> Config:
    return Config("line", {"i": i, "j": j})


def run(searcher: GeneticSearcher, seconds: dict[str, float] | None, batches: int) -> list[Trial]:
    found = []
    for _ in range(batches):
        trials = [trial_of(c, 1.0 + c["i"] / 400 if seconds is None else 1.0) for c in searcher.propose(16)]
        searcher.observe(trials)
        found += trials
    return found


def test_a_first_generation_may_be_somebody_elses() -> None:
    """In a portfolio others have measured one before this searcher has a turn: it breeds at once."""
    searcher = GeneticSearcher(LINE, 0, (), GeneticOptions(mutation=0.0, sharpness=0.01))
    searcher.observe([trial_of(config(i, i), 1.0 + i) for i in range(32)])
    children = searcher.propose(8)
    assert searcher.generation == 1
    assert sum(c["i"] < 32 and c["j"] < 32 for c in children) >= 6  # a parent drawn twice is mutated


def test_the_wheel_favours_the_fit_in_proportion_to_their_fitness() -> None:
    options = GeneticOptions(sharpness=1.0)
    history = [
        trial_of(config(0), 1.0),
        trial_of(config(1), 2.0),
        trial_of(config(2), 4.0),
        trial_of(config(3), math.inf),
    ]
    searcher = GeneticSearcher(LINE, 0, history, options)
    searcher.propose(1)
    drawn = Counter(searcher._select().config["i"] for _ in range(7000))
    # Throughputs of 1, 1/2 and 1/4: 4000, 2000 and 1000 of 7000, give or take four standard deviations.
    assert abs(drawn[0] - 4000) < 170
    assert abs(drawn[1] - 2000) < 160
    assert abs(drawn[2] - 1000) < 120
    assert drawn[3] == 0


def test_children_have_their_parents_genes() -> None:
    history = [trial_of(config(10, 20), 1.0), trial_of(config(30, 40), 1.0)]
    searcher = GeneticSearcher(LINE, 0, history, GeneticOptions(mutation=0.0, tolerance=0.0))
    bred = {(c["i"], c["j"]) for c in searcher.propose(16)}
    assert {(10, 40), (30, 20)} <= bred  # the only two that are crossed from both


def test_generations_shrink_and_keep_their_elites() -> None:
    options = GeneticOptions(population=24, growth=0.5, smallest=8, elites=4)
    assert [options.size(g) for g in range(4)] == [24, 12, 8, 8]
    searcher = GeneticSearcher(LINE, 1, (), options)
    trials = run(searcher, None, 2)  # 24 of the first generation, 8 of the second
    assert searcher.generation == 1
    best = sorted(trials[:24], key=lambda t: t.seconds)[:4]
    assert {t.config.key for t in best} <= {t.config.key for t in searcher._population}


def test_a_generation_of_like_run_times_has_converged() -> None:
    stopping = GeneticSearcher(LINE, 2, (), GeneticOptions(population=16, smallest=16, stop=True))
    assert len(run(stopping, {}, 3)) == 16
    assert stopping.converged
    going_on = GeneticSearcher(LINE, 2, (), GeneticOptions(population=16, smallest=16))
    assert len(run(going_on, {}, 3)) == 48


def test_history_is_the_first_population() -> None:
    scape = landscape(winograd_base=90e-6)
    everything = list(scape.space)
    configs = everything[:: len(everything) // 40]
    history = scape.trials(configs)
    searcher = GeneticSearcher(scape.space, 3, history)
    best = min(history, key=lambda t: t.seconds)
    assert best in searcher._population
    bred = [c for c in searcher.propose(40) if c.key not in {s.key for s in scape.space.seed_configs()}]
    assert sum(_likeness(c, [t.config for t in history]) for c in bred) / len(bred) > 0.5


def _likeness(config: Config, others: list[Config]) -> float:
    """The largest share of equal knobs with one of the others."""
    return max(sum(config[k] == o[k] for k in o.knobs) / len(o.knobs) for o in others if o.template == config.template)
