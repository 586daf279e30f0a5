"""Taps of a convolution that only ever multiply padding are dropped, and the results stay."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from templates.workloads import Conv2d, conv_of
from tests.tuner.graph.networks import Net, assert_as_onnxruntime
from tuner.graph import FusedGraph


def convolution(graph: FusedGraph) -> Conv2d:
    (anchor,) = graph.anchors
    return conv_of(anchor.workload)


@pytest.mark.parametrize(
    ("dilation", "kernel", "padding"),
    [(24, (1, 1), (0, 0, 0, 0)), (12, (3, 3), (12, 12, 12, 12)), (14, (1, 1), (0,) * 4)],
)
def test_a_dilation_beyond_the_image_leaves_the_centre(
    tmp_path: Path, dilation: int, kernel: tuple[int, int], padding: tuple[int, ...]
) -> None:
    net = Net()
    out = net.conv(net.input(1, 8, 14, 14), (8, 16), dilations=[dilation] * 2, pads=[dilation] * 4)
    found = convolution(net.graph(tmp_path, out))
    assert (found.kernel, found.padding) == (kernel, padding)
    assert_as_onnxruntime(
        net, tmp_path, out, x=np.random.default_rng(0).standard_normal((1, 8, 14, 14)).astype("float32")
    )


AXIS = st.tuples(
    st.integers(1, 9), st.integers(1, 5), st.integers(1, 3), st.integers(1, 9), st.integers(0, 12), st.integers(0, 12)
)


@settings(max_examples=25)
@given(st.tuples(AXIS, AXIS))
def test_of_any_sizes(tmp_path_factory: pytest.TempPathFactory, axes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    sizes, taps, strides, dilations, before, behind = zip(*axes, strict=True)
    for size, tap, _, dilation, first, last in axes:
        assume(size + first + last > (tap - 1) * dilation)
    net = Net()
    out = net.conv(
        net.input(1, 4, *sizes),
        (4, 4),
        (taps[0], taps[1]),
        strides=list(strides),
        dilations=list(dilations),
        pads=[*before, *behind],
    )
    given_values = np.random.default_rng(0).standard_normal((1, 4, *sizes)).astype(np.float32)
    assert_as_onnxruntime(net, tmp_path_factory.mktemp("taps"), out, x=given_values)
