"""Strategies as files: written, read again, and refused where they make no sense."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from tuner.errors import BadInput
from tuner.studies.networks import network
from tuner.studies.soap import random_strategy, read_strategy, strategy_from, strategy_json, write_strategy
from tuner.studies.topology import topology_of

LENET, P100 = network("lenet"), topology_of("p100:4")


def test_a_strategy_survives_its_file(tmp_path: Path) -> None:
    rng = random.Random(1)
    for _ in range(20):
        strategy = random_strategy(LENET, P100, rng)
        write_strategy(tmp_path / "s.json", LENET, P100, strategy)
        assert read_strategy(tmp_path / "s.json", LENET, P100) == strategy
    assert (tmp_path / "s.json").read_text().count("\n") == len(LENET.operators) + 2


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("conv1", {"split": {"rows": 2}, "devices": ["gpu0"]}, "2 parts need as many devices, not 1"),
        ("conv1", {"split": {"columns": 2}, "devices": ["gpu0"]}, "cannot be split along 'columns'"),
        ("conv1", {"split": {"rows": 99}, "devices": ["gpu0"]}, "rows can be cut into 1 to 28 parts"),
        ("conv1", {"split": {"rows": "2"}, "devices": ["gpu0"]}, "rows can be cut into"),
        ("conv1", {"devices": ["gpu9"]}, "unknown device 'gpu9': p100:4 has gpu0"),
        ("conv1", {"devices": []}, "1 parts need as many devices, not 0"),
        ("conv1", ["gpu0"], "must be"),
        ("conv1", {"split": [], "devices": ["gpu0"]}, "split must be an object"),
        ("conv9", {"devices": ["gpu0"]}, "lenet has no operator 'conv9'"),
        ("conv1", None, "operator 'conv1' of lenet is missing"),
    ],
)
def test_one_line_says_what_is_wrong(name: str, value: Any, message: str) -> None:
    whole = random_strategy(LENET, P100, random.Random(0))
    data = strategy_json(LENET, P100, whole)
    data["operators"][name] = value
    if value is None:
        del data["operators"][name]
    with pytest.raises(BadInput) as caught:
        strategy_from(json.loads(json.dumps(data)), LENET, P100, "s.json")
    assert message in str(caught.value)
    assert str(caught.value).startswith("s.json: ")


def test_a_file_that_is_no_strategy_is_refused(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text("{")
    with pytest.raises(BadInput, match="cannot be read as JSON"):
        read_strategy(tmp_path / "s.json", LENET, P100)
    with pytest.raises(BadInput, match="no 'operators'"):
        strategy_from([], LENET, P100)
    with pytest.raises(BadInput, match="cannot be written"):
        write_strategy(tmp_path, LENET, P100, random_strategy(LENET, P100, random.Random(0)))
