"""The references themselves, against ONNX's own reference implementation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from templates import epilogue
from templates.reference import Operands, random_operands, reference, relative_error
from templates.template import Layout
from templates.workloads import Conv2d, Dense


def _onnx_conv(conv: Conv2d, data: np.ndarray, weight: np.ndarray) -> np.ndarray:
    node = helper.make_node(
        "Conv", ["x", "w"], ["y"], strides=conv.strides, pads=conv.padding, dilations=conv.dilation, group=conv.groups
    )
    double = TensorProto.DOUBLE
    graph = helper.make_graph(
        [node],
        "conv",
        [
            helper.make_tensor_value_info("x", double, data.shape),
            helper.make_tensor_value_info("w", double, weight.shape),
        ],
        [helper.make_tensor_value_info("y", double, None)],
    )
    return ReferenceEvaluator(helper.make_model(graph)).run(None, {"x": data.astype("f8"), "w": weight.astype("f8")})[0]


@settings(max_examples=25, deadline=None)
@given(
    st.tuples(st.integers(1, 2), st.integers(5, 9), st.integers(5, 9)),
    st.sampled_from([1, 2, 4]),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.tuples(*[st.integers(0, 2)] * 4),
    st.tuples(st.integers(1, 2), st.integers(1, 2)),
    st.tuples(st.integers(1, 2), st.integers(1, 2)),
)
def test_convolution_matches_onnx(size, groups, kernel, padding, strides, dilation) -> None:
    batch, height, width = size
    conv = Conv2d(batch, 4, height, width, 8, kernel, strides, padding, dilation, groups)
    inputs = random_operands(conv.workload(), 1)
    expected = _onnx_conv(conv, inputs.data, inputs.weight)
    assert expected.shape == conv.out_shape
    assert relative_error(reference(conv.workload(), inputs), expected) < 1e-12


def test_epilogue_steps_follow_the_anchor_in_order() -> None:
    dense = Dense(1, 1, 2)
    inputs = Operands(np.array([[2.0]]), np.array([[3.0], [-3.0]]), (np.array([1.0, 1.0]), np.array([[1.0, -1.0]])))
    out = reference(dense.workload(("bias", "add", "relu")), inputs)
    np.testing.assert_array_equal(out, [[8.0, 0.0]])


@pytest.mark.parametrize("text", ["nosuch", "clip:0", "relu:1", "leaky_relu"])
def test_unknown_epilogue_steps_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="epilogue step"):
        epilogue.parse(text)


def test_no_error_is_zero_without_a_sign() -> None:
    """A table would show -0.0."""
    assert str(relative_error(np.ones(3, np.float32), np.ones(3, np.float32))) == "0.0"


def test_errors_are_infinite_where_results_are_not_finite() -> None:
    expected = np.ones((2, 2))
    assert relative_error(np.array([[1.0, np.nan], [1, 1]]), expected) == float("inf")
    assert relative_error(np.ones((2, 1)), expected) == float("inf")
    assert relative_error(expected + 1e-3, expected) == pytest.approx(1e-3)


@given(st.integers(1, 2), st.integers(1, 40), st.integers(1, 5), st.sampled_from([0, 4, 8, 16]))
def test_layouts_round_trip(batch: int, channels: int, size: int, block: int) -> None:
    array = np.random.default_rng(0).standard_normal((batch, channels, size, size + 1))
    layout = Layout(block)
    packed = layout.pack(array)
    assert packed.shape == layout.shape(array.shape)
    np.testing.assert_array_equal(layout.unpack(packed, channels), array)


def test_errors_of_values_that_are_not_finite_or_not_numbers() -> None:
    special = np.array([np.nan, np.inf, -np.inf, 2.0])
    assert relative_error(special, special.copy()) == 0.0
    assert relative_error(np.array([np.nan, np.inf, -np.inf, 1.0]), special) == 0.5
    for place in range(3):
        other = special.copy()
        other[place] = 0.0
        assert relative_error(other, special) == float("inf")
        assert relative_error(special, other) == float("inf")
    assert relative_error(np.array([True, False]), np.array([True, True])) == 1.0
    assert relative_error(np.array([0], np.uint8), np.array([255], np.uint8)) == 1.0
    assert relative_error(np.zeros((0, 3)), np.zeros((0, 3))) == 0.0
