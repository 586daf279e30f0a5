"""Resized images: tables of every rule beside onnx's own results, any table with any config."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from tests.vision_ops.support import Compiled, Place, configs_of, place
from vision_ops.resize import MODES, ROUNDINGS, RULES, Resize, ResizedAxis, ResizeOperator, Sampling, resize_table

__all__ = ["place"]


def _onnx(data: np.ndarray, scale: float, mode: str, rule: str, rounding: str) -> np.ndarray:
    """Along the last axis."""
    nodes = [
        helper.make_node(
            "Resize",
            ["x", "", "scales"],
            ["y"],
            mode=mode,
            coordinate_transformation_mode=rule,
            nearest_mode=rounding,
        )
    ]
    scales = helper.make_tensor("scales", TensorProto.FLOAT, [2], [1.0, scale])
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, data.shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", "columns"])
    graph = helper.make_graph(nodes, "resize", [x], [y], [scales])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)])
    onnx.checker.check_model(model)
    return ReferenceEvaluator(model).run(None, {"x": data})[0]


KINDS = [
    (mode, rule, rounding)
    for mode, rule in itertools.product(MODES, RULES[:4])
    for rounding in (ROUNDINGS[:4] if mode == "nearest" else ROUNDINGS[:1])
]


@pytest.mark.parametrize(("mode", "rule", "rounding"), KINDS)
def test_tables_say_what_onnx_computes(mode: str, rule: str, rounding: str) -> None:
    data = np.random.default_rng(0).standard_normal((1, 7)).astype(np.float32)
    # Where align_corners makes no whole pixels, onnx's own evaluator and its specification differ.
    for scale in (1.0, 2.0, 3.0) if rule == "align_corners" else (0.5, 0.75, 1.0, 1.5, 2.0, 2.625):
        wanted = _onnx(data, scale, mode, rule, rounding)
        pixels, weights = resize_table(ResizedAxis(7, wanted.shape[1], scale), Sampling(mode, rule, rounding))
        assert pixels.shape == weights.shape == (MODES[mode], wanted.shape[1])
        np.testing.assert_allclose((data[0, pixels] * weights).sum(0), wanted[0], rtol=1e-5, atol=1e-6)


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_any_table_with_any_config(data: st.DataObject) -> None:
    host, size = Place.named("host"), st.integers(1, 9)
    image = Resize(*(data.draw(size) for _ in range(6)), data.draw(st.integers(1, 4)))
    seed = data.draw(st.integers(0, 99))
    inputs = ResizeOperator().random_inputs(image.workload(), np.random.default_rng(seed))
    config = configs_of(image.workload(), host.target, samples=3, seed=seed)[-1]
    assert Compiled.of(image.workload(), config, host).error(*inputs) <= 1e-5


def test_pixels_that_are_none_lead_nowhere_outside(place: Place) -> None:
    image = Resize(2, 5, 6, 3, 8, 9, 2)
    data, _, row_weights, _, column_weights = ResizeOperator().random_inputs(image.workload(), np.random.default_rng(0))
    rng = np.random.default_rng(1)
    rows, columns = (rng.integers(-(2**31), 2**31, (2, out)).astype(np.int32) for out in (8, 9))
    config = configs_of(image.workload(), place.target)[0]
    inputs = data, rows, row_weights, columns, column_weights
    assert Compiled.of(image.workload(), config, place).error(*inputs) <= 1e-5


@pytest.mark.parametrize("wrong", [{"taps": 0}, {"taps": 9}, {"height": 0}, {"outer": -1}])
def test_what_is_no_image_is_refused(wrong: dict) -> None:
    sizes = {"outer": 1, "height": 4, "width": 4, "inner": 1, "out_height": 8, "out_width": 8}
    with pytest.raises(ValueError, match="resize: "):
        Resize(**{**sizes, **wrong})


@pytest.mark.parametrize(
    "wrong", [("area", "half_pixel", "floor"), ("linear", "whole_pixel", "floor"), ("nearest", "half_pixel", "up")]
)
def test_rules_that_there_are_not(wrong: tuple[str, str, str]) -> None:
    with pytest.raises(ValueError, match="resize: no such rule"):
        Sampling(*wrong)
