"""Search by reinforcement learning: what the agent sees, its rewards, and that it learns at all."""

from __future__ import annotations

import math
import sys

import pytest

from templates.space import Knob, SearchSpace, Space
from templates.template import context_of
from templates.workloads import Conv2d, Dense
from tests.tuner.search.landscape import landscape, tiny_space, trial_of
from tuner.errors import BadInput
from tuner.search import make_searcher
from tuner.search.reinforcement.observation import (
    fits_paper,
    general_observation,
    next_average,
    paper_observation,
    reward,
)

CONV = context_of(Conv2d(1, 64, 54, 46, 128, (3, 3), (2, 2), (1, 1, 1, 1)).workload())
TILE = Space("gpu", (Knob("xt", (1, 8)), Knob("xi", (3, 7)), Knob("ui", (1, 4)), Knob("order", ("a", "b"))))


def test_a_convolution_is_seen_in_seventeen_numbers() -> None:
    assert fits_paper(CONV)
    assert not fits_paper(context_of(Dense(1, 8, 16).workload()))
    config = TILE.config({"xt": 8, "xi": 7, "ui": 4, "order": "b"})
    seen = paper_observation(TILE, config, CONV, 0.5)
    assert len(seen) == 17
    assert seen[:9] == pytest.approx(
        [1, math.log2(65), math.log2(129), 2, 2, math.log2(55), math.log2(47), math.log2(3), 1]
    )
    assert seen[9:] == pytest.approx([math.log2(9), 0, 0, 3, 0, 0, math.log2(5), 0.5])


def test_any_other_operator_is_seen_by_its_sizes_and_knobs() -> None:
    context = {"workload.rows.0": 3.0, "workload.in.0": 9.0}
    config = TILE.config({"xt": 8, "order": "b"})
    assert general_observation(TILE, config, context, 2.0) == [9.0, 3.0, 1.0, 0.0, 0.0, 1.0, 2.0]


def test_the_average_as_printed_falls_to_nothing_and_ours_follows_the_times() -> None:
    printed = ours = 0.0
    for step in range(1, 41):
        printed = next_average(printed, 1.0, step, printed=True)
        ours = next_average(ours, 1.0, step, printed=False)
    assert printed < 0.03
    assert ours == pytest.approx(1.0)
    assert next_average(ours, math.inf, 41, printed=False) == ours


def test_rewards_are_clamped_at_twice_the_average() -> None:
    assert reward(2.0, 1.0, printed=False) == 0.5
    assert reward(2.0, 100.0, printed=False) == reward(2.0, math.inf, printed=False) == -1.0
    assert reward(2e-6, 5e-6, printed=True) == pytest.approx(-2.0)
    assert reward(0.0, 1.0, printed=False) == 0.0


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "stable_baselines3", None)
    with pytest.raises(BadInput, match=r"needs the extra rl .*pip install 'edgetune\[rl\]'"):
        make_searcher("reinforcement", tiny_space(), 0)


@pytest.mark.parametrize("options", ["", ":printed=1", ":observation=general", ":keep=0.5,rounds=2"])
def test_it_proposes_with_every_option(options: str) -> None:
    pytest.importorskip("stable_baselines3")
    scape = landscape(winograd_base=90e-6)
    searcher = make_searcher(f"reinforcement{options}", scape.space, 0)
    for _ in range(4):
        batch = searcher.propose(16)
        assert len({c.key for c in batch}) == 16
        searcher.observe(scape.trials(batch))


def test_it_learns_which_knob_matters() -> None:
    """One value of one knob is worth everything: after some batches most proposals have it."""
    pytest.importorskip("stable_baselines3")
    knobs = tuple(Knob(f"k{i}", tuple(range(6))) for i in range(6))
    space = SearchSpace((Space("t", knobs),), CONV)
    searcher = make_searcher("reinforcement:best=0,rate=0.001", space, 1)
    share = []
    for _ in range(14):
        batch = searcher.propose(32)
        share.append(sum(c["k0"] == 5 for c in batch) / len(batch))
        searcher.observe([trial_of(c, 1.0 if c["k0"] == 5 else 2.0) for c in batch])
    assert sum(share[-3:]) / 3 > 0.6 > 0.4 > sum(share[:2]) / 2
