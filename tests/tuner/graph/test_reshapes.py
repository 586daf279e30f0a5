"""Reshapes that follow each other cost nothing: no kernel copies what only gets another shape."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tests.templates.support import host_target
from tests.tuner.graph.networks import Net, assert_as_onnxruntime, calls

COPIES = re.compile(r"fused(_(reshape|expand_dims|squeeze)\d*)+")  # functions of nothing but reshapes


def reshaped(net: Net, x: str, *shape: int) -> str:
    return net.op("Reshape", x, net.constant(np.array(shape)))


@pytest.mark.parametrize("last", [(4, 30), (2, 3, 20)])  # another shape, and that at the beginning
def test_reshapes_of_a_softmax_make_no_kernel(tmp_path: Path, last: tuple[int, ...]) -> None:
    net = Net()
    rows = net.op("Softmax", reshaped(net, net.input(2, 3, 20), 6, 20), axis=-1)
    flat = reshaped(net, rows, 120)
    out = reshaped(net, net.op("Unsqueeze", flat, net.constant(np.array([0]))), *last)
    x = np.random.default_rng(0).standard_normal((2, 3, 20)).astype(np.float32)
    assert not list(filter(COPIES.fullmatch, calls(net.graph(tmp_path, out), host_target())))
    assert_as_onnxruntime(net, tmp_path, out, x=x)


def test_what_is_read_between_two_reshapes_stays(tmp_path: Path) -> None:
    net = Net()
    flat = reshaped(net, net.input(2, 30), 60)
    back = reshaped(net, flat, 2, 30)
    twice = reshaped(net, flat, 4, 15)
    x = np.random.default_rng(0).standard_normal((2, 30)).astype(np.float32)
    assert_as_onnxruntime(net, tmp_path, flat, back, twice, x=x)
