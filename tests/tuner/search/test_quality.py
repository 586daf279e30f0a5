"""What model-guided search is worth, on analytic landscapes: deterministic, so the numbers can be asserted."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from statistics import median

import numpy as np
import pytest

from templates.space import SearchSpace
from tests.tuner.search.landscape import Landscape, landscape, trial_of
from tuner.search import Experience, Searcher, make_searcher
from tuner.search.allocation import FLOOR, shares
from tuner.search.cost_model import CostModel
from tuner.search.diversity import diverse_batch, spread_out
from tuner.search.model_guided import ModelOptions
from tuning_db.record import Config, Trial

BATCH = 16
SEEDS = range(10)


def without_seeds(scape: Landscape) -> Landscape:
    """The same landscape where no author says what to try first."""
    spaces = tuple(dataclasses.replace(s, seeds=()) for s in scape.space.spaces)
    return Landscape(SearchSpace(spaces), scape.seconds)


def search(name: str, scape: Landscape, seed: int, limit: int) -> list[Trial]:
    return search_on(make_searcher(name, scape.space, seed), scape, limit)


def search_on(searcher: Searcher, scape: Landscape, limit: int) -> list[Trial]:
    trials: list[Trial] = []
    while len(trials) < limit:
        batch = scape.trials(searcher.propose(BATCH))
        searcher.observe(batch)
        trials += batch
    return trials


def trials_to(trials: list[Trial], seconds: float) -> int:
    """How many trials it took to be at `seconds` or faster; one more than all if it never was."""
    return next((i for i, t in enumerate(trials, 1) if t.seconds <= seconds), len(trials) + 1)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("winograd_base", [90e-6, 300e-6])
def test_model_guided_is_within_five_percent_in_a_fraction_of_random_searchs_trials(winograd_base: float) -> None:
    scape = without_seeds(landscape(winograd_base))
    target = scape.optimum * 1.05
    guided = median(trials_to(search("model_guided", scape, s, 160), target) for s in SEEDS)
    chance = median(trials_to(search("random", scape, s, 640), target) for s in SEEDS)
    assert guided <= 100
    assert guided < chance / 4


@pytest.mark.night
@pytest.mark.parametrize(("name", "limit"), [("autotvm_ga", 512), ("autotvm_xgb:points=32,patience=10", 256)])
def test_what_autotvm_did_beats_chance_and_not_ours(name: str, limit: int) -> None:
    scape = without_seeds(landscape(winograd_base=90e-6))
    target = scape.optimum * 1.1
    theirs, chance, ours = (
        median(trials_to(search(n, scape, s, limit), target) for s in SEEDS) for n in (name, "random", "auto")
    )
    assert ours < theirs < chance


@pytest.mark.sampled(2)
def test_seeds_help() -> None:
    scape = landscape(winograd_base=90e-6)
    target = scape.optimum * 1.05
    seeded = median(trials_to(search("model_guided", scape, s, 160), target) for s in SEEDS)
    bare = median(trials_to(search("model_guided", without_seeds(scape), s, 160), target) for s in SEEDS)
    assert seeded < bare


@pytest.mark.sampled(2)
def test_a_slow_template_fades_but_is_not_abandoned() -> None:
    scape = landscape(winograd_base=600e-6)  # Winograd's best is more than twice as slow as the direct one's
    later = Counter(t.config.template for s in SEEDS for t in search("model_guided", scape, s, 240)[32:])
    assert 0 < later["winograd"] < 0.08 * later.total()


def test_the_model_ranks_configs_it_has_not_seen() -> None:
    scape = landscape(winograd_base=90e-6)
    trials = search("random", scape, 0, 320)
    model = CostModel(scape.space)
    model.fit(trials[:224])
    held_out = [t for t in trials[224:] if t.ok]
    scores = model.scores([t.config for t in held_out])
    ranks = np.argsort(np.argsort(scores)), np.argsort(np.argsort([-t.seconds for t in held_out]))
    assert np.corrcoef(*ranks)[0, 1] > 0.8


def test_the_model_puts_failures_last() -> None:
    scape = landscape(winograd_base=90e-6)
    trials = search("random", scape, 1, 320)
    model = CostModel(scape.space)
    model.fit(trials[:256])
    failed = [t.config for t in trials[256:] if not t.ok]
    fine = [t.config for t in trials[256:] if t.ok and t.config.template == "winograd"]
    assert failed
    assert model.scores(failed).max() < np.median(model.scores(fine))


def test_a_template_that_no_trial_has_can_be_scored() -> None:
    scape = landscape(winograd_base=90e-6)
    direct = list(scape.space.spaces[0])[::300]
    model = CostModel(scape.space)
    model.fit(scape.trials(direct))
    assert np.isfinite(model.scores([*direct, *scape.space.spaces[1].seed_configs()])).all()
    with pytest.raises(RuntimeError, match="not fitted"):
        CostModel(scape.space).scores(direct)


def test_shares_follow_the_best_time_of_each_template() -> None:
    def trials(template: str, *seconds: float) -> list[Trial]:
        return [trial_of(Config(template, {"i": i}), s) for i, s in enumerate(seconds)]

    names = ["fast", "twice", "failing", "fresh", "unmeasured"]
    found = shares(
        names,
        [
            *trials("fast", 4.0, 1.0, 3.0, 9.0),
            *trials("twice", 2.0, 2.5, 2.2, 2.1),
            *trials("failing", *[math.inf] * 4),
            *trials("fresh", 50.0),
        ],
    )
    assert found == {"fast": 1.0, "twice": 0.125, "failing": FLOOR, "fresh": 1.0, "unmeasured": 1.0}
    assert shares(["failing"], trials("failing", *[math.inf] * 9)) == {"failing": 1.0}


def test_spread_out_takes_the_farthest_each_time() -> None:
    space = landscape(winograd_base=90e-6).space.spaces[1]
    pool = [space.config({"m": m, "group": g}) for m in (2, 4, 6) for g in (1, 2, 14)]
    chosen = spread_out(space, pool, [pool[0]], 2)
    assert chosen == [pool[-1], space.config({"m": 2, "group": 14})]
    assert spread_out(space, [], [], 3) == []


def test_a_batch_prefers_the_unlike_among_equals_and_the_best_among_unequals() -> None:
    a, near, far = (Config("t", {"i": i, "j": j}) for i, j in ((0, 0), (0, 1), (5, 5)))
    assert diverse_batch([a, near, far], [1.0, 1.0, 1.0], 2, weight=0.05) == [a, far]
    assert diverse_batch([a, near, far], [1.0, 0.9, 0.5], 2, weight=0.05) == [a, near]


@pytest.mark.parametrize("name", ["model_guided", "auto"])
def test_a_template_of_which_others_know_nothing_keeps_its_seeds_and_its_spread(name: str) -> None:
    scape = landscape(winograd_base=90e-6)
    direct = SearchSpace(scape.space.spaces[:1])
    known = Experience(direct, scape.trials(make_searcher("random", direct, 0).propose(32)))
    searcher = make_searcher(name, scape.space, 0)
    searcher.learn_from([known])
    first = search_on(searcher, scape, 16)
    new = {t.config.key for t in first if t.config.template == "winograd"}
    seeds = scape.space.spaces[1].seed_configs()
    assert {c.key for c in seeds} <= new
    assert len(new) >= len(seeds) + ModelOptions().spread_per_template
