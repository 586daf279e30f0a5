"""Products of two computed matrices become the operator batch_matmul, where that is one, and compute the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from templates.batch_matmul import BatchMatmul
from tests.tuner.graph.networks import Net, assert_as_onnxruntime
from tuner.graph import FusedGraph, OperatorStep

Shape = tuple[int, ...]


def matrix(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def products(graph: FusedGraph) -> list[BatchMatmul]:
    return [BatchMatmul.of(s.workload) for s in graph.steps if isinstance(s, OperatorStep)]


@pytest.mark.parametrize(
    ("left", "right", "wanted"),
    [
        ((1, 3, 49, 32), (1, 3, 32, 49), BatchMatmul(3, 49, 32, 49)),
        ((49, 32), (32, 40), BatchMatmul(1, 49, 32, 40)),
        ((2, 3, 20, 32), (32, 40), BatchMatmul(1, 120, 32, 40)),
        ((2, 3, 20, 32), (1, 1, 32, 40), BatchMatmul(1, 120, 32, 40)),
        ((2, 3, 20, 32), (2, 1, 32, 40), None),  # a matrix is repeated for some
        ((1, 3, 20, 32), (2, 3, 32, 40), None),
        ((4, 4), (4, 4), None),  # too small
        ((32,), (32, 1024), None),
    ],
)
def test_products_of_shapes(tmp_path: Path, left: Shape, right: Shape, wanted: BatchMatmul | None) -> None:
    net = Net()
    out = net.op("MatMul", net.input(*left, name="a"), net.input(*right, name="b"))
    assert products(net.graph(tmp_path, out)) == ([] if wanted is None else [wanted])
    assert_as_onnxruntime(net, tmp_path, out, a=matrix(*left), b=matrix(*right))


@pytest.mark.parametrize(("order", "transposed"), [([0, 1, 3, 2], True), ([0, 1, 2, 3], False)])
def test_a_transposition_before_it_is_part_of_it(tmp_path: Path, order: list[int], transposed: bool) -> None:
    net = Net()
    keys = net.op("Transpose", net.input(1, 2, 40, 40, name="b"), perm=order)
    out = net.op("MatMul", net.input(1, 2, 30, 40, name="a"), keys)
    graph = net.graph(tmp_path, out)
    assert [product.transposed for product in products(graph)] == [transposed]
    assert_as_onnxruntime(net, tmp_path, out, a=matrix(1, 2, 30, 40), b=matrix(1, 2, 40, 40))


def test_a_constant_matrix_is_a_dense_layer(tmp_path: Path) -> None:
    net = Net()
    graph = net.graph(tmp_path, net.op("MatMul", net.input(2, 20, 32), net.weight(32, 40)))
    assert products(graph) == []
    assert len(graph.anchors) == 1
