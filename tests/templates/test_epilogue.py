"""Epilogues: which tokens stand where."""

from __future__ import annotations

import pytest

from templates.epilogue import check_order
from templates.integers import INTEGERS
from tests.templates.integer_workloads import WORKLOADS
from tuner.cli.common import INTEGERS as NAMED

WRONG = {
    "real before relu": (["relu", "real"], "'relu' needs 'real' before it"),
    "an offset of real numbers": (["real", "scale", "offset"], "'offset' stands before"),
    "twice real": (["real", "real"], "'real' stands before"),
    "a ReLU of a result": (["real", "quantize", "relu"], "'relu' stands behind the last 'quantize'"),
    "bytes alone": (["real", "bytes", "quantize"], "belong together"),
    "a sum without bytes": (["real", "add_bytes", "bytes"], "belong together"),
}


@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_what_networks_have_is_in_order(name: str) -> None:
    check_order(WORKLOADS[name].epilogue, integers=True)


@pytest.mark.parametrize("name", sorted(WRONG))
def test_a_token_out_of_its_place_is_named(name: str) -> None:
    tokens, said = WRONG[name]
    with pytest.raises(ValueError, match=said):
        check_order(tokens, integers=True)


def test_real_numbers_are_not_quantised() -> None:
    check_order(["scale", "bias", "add", "relu"], integers=False)
    with pytest.raises(ValueError, match="'quantize' is for integers only"):
        check_order(["bias", "quantize"], integers=False)


def test_the_command_line_has_the_same_name_for_integers() -> None:
    assert NAMED == INTEGERS
