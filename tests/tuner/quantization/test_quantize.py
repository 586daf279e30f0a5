"""Whole networks: what costs accuracy stays in float, and the bounds are kept."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from templates.cpu.dot_products import products_of
from templates.integers import INTEGERS
from tests.templates.support import host_target
from tests.tuner.graph.networks import run
from tests.tuner.quantization.conftest import Case
from tuner.errors import BadInput
from tuner.graph import fuse, load_onnx
from tuner.module import OnnxReference
from tuner.quantization import Bounds, Calibration, Method, Quantized

needs_dot_products = pytest.mark.skipif(products_of(host_target()) is None, reason="the processor has no dot products")


def in_float(done: Quantized) -> dict[str, str]:
    """Why each operator is in float that is."""
    return {judged.operator.name: judged.why_float for judged in done.choice.operators if judged.why_float}


def outlier(case: Case) -> str:
    """The name of the convolution behind the wide channel."""
    (found,) = (
        node.name
        for node in case.prepared.model.graph.node
        if node.op_type == "Conv" and node.input[0].startswith("leakyrelu")
    )
    return found


@pytest.mark.parametrize(("method", "least"), [(Method.MINMAX, 20), (Method.PERCENTILE, 20), (Method.ENTROPY, 5)])
def test_every_product_and_joint_of_a_tame_network_is_quantised(plain: Case, method: Method, least: float) -> None:
    done = plain.quantized(calibration=Calibration(method))
    assert in_float(done) == {}
    assert [judged.operator.type for judged in done.choice.operators].count("Conv") == 4
    assert done.choice.chosen.share == 1.0
    assert done.choice.chosen.quality.sqnr > least
    assert (done.calibrated, done.judged) == (24, 8)


def test_methods_choose_other_ranges(plain: Case) -> None:
    models = {m: plain.quantized(calibration=Calibration(m, 99.0)).choice.model for m in Method}
    texts = {model.SerializeToString() for model in models.values()}
    assert len(texts) == len(Method)


def test_exactly_the_sensitive_operator_stays_in_float_and_the_bound_is_kept(sensitive: Case) -> None:
    free = sensitive.quantized()
    assert free.choice.chosen.quality.sqnr < 10
    done = sensitive.quantized(bounds=Bounds(min_sqnr=20))
    assert in_float(done) == {outlier(sensitive): "kept by the bound: in integers it costs most"}
    assert done.choice.chosen.quality.sqnr >= 20
    assert done.choice.variants[0].quality.sqnr == free.choice.chosen.quality.sqnr
    alone = {judged.operator.name: judged.sqnr for judged in done.choice.operators}
    assert min(alone, key=lambda name: alone[name]) == outlier(sensitive)


def test_the_bound_on_agreement_is_kept_where_it_would_not_be(sensitive: Case) -> None:
    choice = sensitive.quantized(bounds=Bounds(max_drop=0)).choice
    free = choice.variants[0].quality
    assert free.top1 is not None
    assert free.top1 < 50
    assert (choice.chosen.in_float, choice.chosen.quality.top1) == (1, 100)


def test_accuracy_is_that_of_the_labels(plain: Case) -> None:
    """Labels that the float network always gets wrong make agreement worthless: accuracy cannot fall."""
    infer = OnnxReference(plain.file)
    right = np.array([[np.argmax(next(iter(infer(sample).values())))] for sample in plain.samples])
    done = plain.quantized(bounds=Bounds(max_drop=0), labels=right)
    assert done.choice.exact.top1 == 100
    wrong = plain.quantized(bounds=Bounds(max_drop=0), labels=(right + 1) % 6)
    assert wrong.choice.exact.top1 == 0
    assert wrong.choice.chosen.in_float == 0


def test_a_bound_that_nothing_keeps_is_refused(plain: Case) -> None:
    with pytest.raises(
        BadInput, match=r"the bound is missed with 1 operator\(s\) in integers already \([0-9.]+ dB and"
    ):
        plain.quantized(bounds=Bounds(min_sqnr=99))


def test_a_curve_goes_from_all_integers_to_nearly_none(plain: Case) -> None:
    variants = plain.quantized(curve=4).choice.variants
    assert [variant.in_float for variant in variants] == [0, 2, 4, 6]
    shares = [variant.share for variant in variants]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] == 1.0


@needs_dot_products
def test_what_is_kept_in_float_is_computed_in_float_and_all_else_in_integers(sensitive: Case) -> None:
    """Results are onnxruntime's, and better than those of the network that is all in integers."""
    done = sensitive.quantized(bounds=Bounds(min_sqnr=20))
    file = sensitive.scratch / "kept.onnx"
    onnx.save(done.choice.model, file)
    graph = fuse(load_onnx(file), integers=True)
    assert sorted(anchor.workload.dtype == INTEGERS for anchor in graph.anchors) == [False, *[True] * 5]
    sample = sensitive.samples[3]
    (found,) = run(graph, host_target(), dict(sample)).values()
    (wanted,), (exact,) = (tuple(OnnxReference(f)(sample).values()) for f in (file, sensitive.file))
    np.testing.assert_allclose(found, wanted, atol=0.02 * np.abs(wanted).max())
    np.testing.assert_allclose(found, exact, atol=0.1 * np.abs(exact).max())
