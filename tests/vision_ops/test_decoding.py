"""Decoders of detection heads (SSD, YOLO, region proposals): references, known values, and whatever a head may give."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from templates.operator import View, operator_named
from templates.template import search_space
from tests.vision_ops.support import Compiled, Place, configs_of, place
from vision_ops.multibox_decode import NO_CLASS, MultiboxDecode
from vision_ops.multibox_prior import MultiboxPrior, prior_shapes
from vision_ops.proposal import TOO_SMALL, Proposal
from vision_ops.yolo import BOX, YoloDecode

__all__ = ["place"]
SIZE = st.integers(1, 7)
DRAWN = {
    "multibox_prior": st.builds(
        MultiboxPrior,
        SIZE,
        SIZE,
        SIZE,
        st.sampled_from([0.0, 0.3]),
        st.sampled_from([0.0, 8.0]),
        st.floats(0, 1, width=32),
        st.floats(0, 1, width=32),
        st.booleans(),
    ),
    "multibox_decode": st.builds(
        MultiboxDecode,
        SIZE,
        st.integers(2, 9),
        st.integers(1, 200),
        st.sampled_from([-1.0, 0.01, 0.5, 2.0]),
        st.just(0.1),
        st.just(0.2),
        st.booleans(),
    ),
    "yolo_decode": st.builds(YoloDecode, SIZE, SIZE, SIZE, SIZE, st.integers(1, 40), st.sampled_from([8.0, 32.0])),
    "proposal": st.builds(
        Proposal,
        SIZE,
        SIZE,
        SIZE,
        st.integers(1, 40),
        st.just(16.0),
        st.just(8.0),
        st.just(300.0),
        st.just(200.0),
        st.sampled_from([0.0, 1.0, 1e4]),
    ),
}


def _first(view: View, where: Place) -> Compiled:
    return Compiled.of(view.workload(), configs_of(view.workload(), where.target)[0], where)


@pytest.mark.parametrize("op", DRAWN)
@settings(max_examples=10, deadline=None)
@given(st.data())
def test_any_head_with_any_config(op: str, data: st.DataObject) -> None:
    host, workload, seed = Place.named("host"), data.draw(DRAWN[op]).workload(), data.draw(st.integers(0, 99))
    inputs = operator_named(op).random_inputs(workload, np.random.default_rng(seed))
    config = configs_of(workload, host.target, samples=3, seed=seed)[-1]
    assert Compiled.of(workload, config, host).error(*inputs) <= 1e-5


@pytest.mark.parametrize("size", [(5, 5), (3, 6)])
def test_priors_are_those_of_the_definition(place: Place, size: tuple[int, int]) -> None:
    """Sizes first, then ratios of the first size; as tall as a share of the image, as wide as the ratio makes it."""
    (height, width), sizes, ratios = size, (0.2, 0.3), (1.0, 2.0, 0.5)
    shapes = prior_shapes(sizes, ratios, height, width)
    (anchors,) = _first(MultiboxPrior(height, width, len(shapes)), place)(shapes)
    assert anchors.shape == (height * width * 4, 4)
    for at, (share, ratio) in enumerate([(0.2, 1), (0.3, 1), (0.2, 2), (0.2, 0.5)]):
        x1, y1, x2, y2 = anchors[(1 * width + 2) * 4 + at]
        assert (x1 + x2) / 2 == pytest.approx(2.5 / width)
        assert (y1 + y2) / 2 == pytest.approx(1.5 / height)
        assert y2 - y1 == pytest.approx(share / np.sqrt(ratio), rel=1e-5)
        assert (x2 - x1) * width == pytest.approx(share * height * np.sqrt(ratio), rel=1e-5)


def test_a_box_that_does_not_move_is_its_anchor_with_the_best_class(place: Place) -> None:
    box = MultiboxDecode(1, 4, 3, threshold=0.25)
    probabilities = np.array([[[0.1, 0.9, 0.4], [0.3, 0.05, 0.2], [0.5, 0.05, 0.2], [0.1, 0, 0.2]]], np.float32)
    anchors = np.array([[0.1, 0.2, 0.3, 0.5], [0, 0, 1, 1], [-0.5, 0.5, 0.5, 1.5]], np.float32)
    boxes, scores, ids = _first(box, place)(probabilities, np.zeros((1, 3, 4), np.float32), anchors)
    np.testing.assert_allclose(boxes[0], np.clip(anchors, 0, 1), atol=1e-6)
    assert ids.tolist() == [[1, NO_CLASS, NO_CLASS]]
    assert scores.tolist() == [[0.5, NO_CLASS, NO_CLASS]]


def test_classes_that_are_not_a_number_are_never_the_best(place: Place) -> None:
    box = MultiboxDecode(1, 5, 64)
    inputs = operator_named(box.op).random_inputs(box.workload(), np.random.default_rng(0))
    inputs[0][0, 2, ::2], inputs[0][0, 1:, 3], inputs[0][0, 4, 5] = np.nan, np.nan, np.inf
    assert _first(box, place).error(*inputs) <= 1e-5
    _, scores, ids = _first(box, place)(*inputs)
    assert (ids[0, 3], scores[0, 3], ids[0, 5]) == (NO_CLASS, NO_CLASS, 3)


def test_a_yolo_box_lies_in_its_place_and_is_as_large_as_its_anchor(place: Place) -> None:
    yolo = YoloDecode(1, 2, 3, 4, 5, 16.0)
    head = np.zeros((1, 2 * (BOX + 3), 20), np.float32)
    head[0, BOX + 3 + 4], head[0, BOX + 3 + BOX + 1] = 40.0, 40.0  # the second anchor: something, of class 1
    extents = np.array([[10, 20], [30, 40]], np.float32)
    boxes, scores = _first(yolo, place)(head, extents)
    at = (2 * 5 + 3) * 2  # row 2, column 3
    np.testing.assert_allclose(boxes[0, at], [56 - 5, 40 - 10, 56 + 5, 40 + 10], rtol=1e-6)
    np.testing.assert_allclose(boxes[0, at + 1], [56 - 15, 40 - 20, 56 + 15, 40 + 20], rtol=1e-6)
    np.testing.assert_allclose(scores[0, :, at], [0.25, 0.25, 0.25], rtol=1e-6)
    np.testing.assert_allclose(scores[0, :, at + 1], [0.5, 1.0, 0.5], rtol=1e-6)


def test_proposals_end_at_the_image_and_small_ones_are_none(place: Place) -> None:
    rpn = Proposal(1, 2, 3, 4, 16.0, 16.0, 48.0, 64.0, least=4.0)
    anchors = np.array([[-30, -30, 30, 30], [-1, -1, 1, 1]], np.float32)
    moves = np.zeros((1, 8, 12), np.float32)
    moves[0, 2, 5] = 1e30  # is not followed
    boxes, scores = _first(rpn, place)(np.zeros((1, 2, 12), np.float32), moves, anchors)
    assert boxes[0, 0].tolist() == [0, 0, 30, 30]
    assert boxes[0, 2 * 11].tolist() == [18, 2, 64, 48]
    assert np.isfinite(boxes).all()
    assert scores[0].tolist() == [0.5, TOO_SMALL] * 12


@pytest.mark.parametrize("op", DRAWN)
def test_heads_of_anything_lead_nowhere_outside(place: Place, op: str) -> None:
    views: dict[str, View] = {
        "multibox_prior": MultiboxPrior(3, 5, 2),
        "multibox_decode": MultiboxDecode(2, 3, 37),
        "yolo_decode": YoloDecode(2, 3, 4, 5, 3, 8.0),
        "proposal": Proposal(2, 3, 5, 3, 8.0, 8.0, 40.0, 24.0),
    }
    run, rng = _first(views[op], place), np.random.default_rng(1)
    strange = np.array([np.nan, np.inf, -np.inf, 3e38, -3e38, 0.0], np.float32)
    inputs = [rng.choice(strange, spec.shape) for spec in operator_named(op).inputs(run.workload)]
    assert [out.shape for out in run(*inputs)] == [spec.shape for spec in operator_named(op).outputs(run.workload)]


WRONG = {
    "no place": lambda: MultiboxPrior(0, 3, 2),
    "a negative step": lambda: MultiboxPrior(3, 3, 2, step_x=-1.0),
    "no class": lambda: MultiboxDecode(1, 1, 9),
    "no step": lambda: YoloDecode(1, 3, 4, 5, 5, 0.0),
    "no anchor": lambda: YoloDecode(1, 0, 4, 5, 5, 8.0),
    "no image": lambda: Proposal(1, 3, 5, 5, 8.0, 8.0, 0.0, 40.0),
    "a negative extent": lambda: Proposal(1, 3, 5, 5, 8.0, 8.0, 40.0, 40.0, -1.0),
}


@pytest.mark.parametrize("case", WRONG)
def test_heads_that_are_none_are_refused(case: str) -> None:
    with pytest.raises(ValueError, match=r"(multibox_prior|multibox_decode|yolo_decode|proposal): "):
        WRONG[case]()


def test_nothing_is_done_where_nothing_is() -> None:
    target = Place.named("host").target
    assert search_space(MultiboxDecode(0, 3, 5).workload(), target) is None
    assert search_space(MultiboxDecode(2, 3, 0).workload(), target) is None
