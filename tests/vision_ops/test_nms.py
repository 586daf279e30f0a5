"""Greedy suppression of boxes: against a reference in NumPy, onnxruntime's results, and whatever a network may give."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from templates.template import template_named
from tests.vision_ops.support import Compiled, Place, configs_of, place
from vision_ops.nms import NO_THRESHOLD, Nms, NmsOperator
from vision_ops.selected import INVALID
from vision_ops.sort_keys import argsorted

__all__ = ["place"]
TEMPLATE = template_named("vision.nms")


def _random(nms: Nms, seed: int = 0) -> tuple[np.ndarray, ...]:
    return NmsOperator().random_inputs(nms.workload(), np.random.default_rng(seed))


def _errors(nms: Nms, where: Place, inputs: tuple[np.ndarray, ...], samples: int = 0) -> list[float]:
    configs = configs_of(nms.workload(), where.target, samples)
    return [Compiled.of(nms.workload(), config, where).error(*inputs) for config in configs]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "nms",
    [
        Nms(1, 1, 1000, 1000, 1000, 0.5),
        Nms(2, 3, 700, 500, 50, 0.45, score=0.3),
        Nms(2, 1, 333, 333, 333, 0.6, centre=True, by_id=True),
        Nms(1, 2, 1, 1, 1, 0.5),
    ],
    ids=["all", "classes", "ids", "one"],
)
def test_what_is_kept_is_the_references(place: Place, nms: Nms) -> None:
    assert max(_errors(nms, place, _random(nms), samples=2)) == 0


def _with_scores(nms: Nms, boxes: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, ...]:
    order = argsorted(scores, True)[:, : nms.candidates]
    return boxes.astype(np.float32), scores.astype(np.float32), np.ascontiguousarray(order)


def test_all_are_suppressed_but_one_and_none_is(place: Place) -> None:
    nms = Nms(1, 1, 200, 200, 200, 0.5)
    scores = np.random.default_rng(0).random((1, 200))
    same = np.tile([0.0, 0.0, 10.0, 10.0], (1, 200, 1))
    apart = same + 20.0 * np.arange(200)[None, :, None]
    for config in configs_of(nms.workload(), place.target):
        run = Compiled.of(nms.workload(), config, place)
        kept, count = run(*_with_scores(nms, same, scores))
        assert count[0] == 1
        assert kept[0, 0] == scores.argmax()
        assert (kept[0, 1:] == INVALID).all()
        kept, count = run(*_with_scores(nms, apart, scores))
        assert count[0] == 200
        assert (kept[0] == argsorted(scores, True)[0]).all()


def test_equal_scores_are_kept_in_order(place: Place) -> None:
    nms = Nms(1, 1, 130, 130, 130, 0.4)
    boxes, _, _ = _random(nms)
    assert max(_errors(nms, place, _with_scores(nms, boxes, np.ones((1, 130))))) == 0


def test_not_a_number_and_infinities_suppress_nothing_and_are_survived(place: Place) -> None:
    nms = Nms(1, 1, 300, 300, 300, 0.4, score=0.2)
    boxes, scores, _ = _random(nms)
    boxes[0, ::7, 2], boxes[0, 1::11] = np.nan, np.inf
    scores[0, ::13], scores[0, 3] = np.nan, np.inf
    assert max(_errors(nms, place, _with_scores(nms, boxes, scores))) == 0


def test_rows_with_fewer_candidates(place: Place) -> None:
    """Behind the last the order says so, whatever the scores are."""
    nms = Nms(2, 2, 300, 300, 300, 0.4)
    boxes, scores, order = _random(nms)
    for row, count in enumerate((0, 1, 130, 299)):
        order[row, count:] = INVALID
    assert max(_errors(nms, place, (boxes, scores, order), samples=2)) == 0


def test_an_order_that_is_none_leads_nowhere_outside(place: Place) -> None:
    nms = Nms(1, 1, 100, 100, 100, 0.5)
    boxes, scores, _ = _random(nms)
    order = np.random.default_rng(0).integers(-(2**31), 2**31 - 1, (1, 100)).astype(np.int32)
    for config in configs_of(nms.workload(), place.target):
        kept, count = Compiled.of(nms.workload(), config, place)(boxes, scores, order)
        assert 0 <= count[0] <= 100
        assert kept.max() < 100


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any_boxes_with_any_config(data: st.DataObject) -> None:
    host = Place.named("host")
    boxes = data.draw(st.integers(1, 150))
    nms = Nms(
        data.draw(st.integers(1, 2)),
        data.draw(st.integers(1, 3)),
        boxes,
        data.draw(st.integers(1, boxes)),
        data.draw(st.integers(1, 200)),
        data.draw(st.sampled_from([0.0, 0.3, 0.5, 1.0])),
        data.draw(st.sampled_from([NO_THRESHOLD, 0.0, 0.5, 2.0])),
        data.draw(st.booleans()),
        data.draw(st.booleans()),
    )
    seed = data.draw(st.integers(0, 99))
    config = configs_of(nms.workload(), host.target, samples=3, seed=seed)[-1]
    assert Compiled.of(nms.workload(), config, host).error(*_random(nms, seed)) == 0


def _onnxruntime(nms: Nms, boxes: np.ndarray, scores: np.ndarray) -> np.ndarray:
    from onnxruntime import InferenceSession

    def scalar(name: str, value: float, kind: int) -> onnx.TensorProto:
        return onnx.helper.make_tensor(name, kind, [1], [value])

    node = onnx.helper.make_node(
        "NonMaxSuppression", ["boxes", "scores", "most", "iou", "score"], ["out"], center_point_box=int(nms.centre)
    )
    graph = onnx.helper.make_graph(
        [node],
        "nms",
        [
            onnx.helper.make_tensor_value_info("boxes", onnx.TensorProto.FLOAT, boxes.shape),
            onnx.helper.make_tensor_value_info("scores", onnx.TensorProto.FLOAT, scores.shape),
        ],
        [onnx.helper.make_tensor_value_info("out", onnx.TensorProto.INT64, [None, 3])],
        [
            scalar("most", nms.keep, onnx.TensorProto.INT64),
            scalar("iou", nms.iou, onnx.TensorProto.FLOAT),
            scalar("score", nms.score, onnx.TensorProto.FLOAT),
        ],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    session = InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"boxes": boxes, "scores": scores})[0]


@pytest.mark.parametrize("centre", [False, True])
def test_onnxruntime_keeps_the_same(place: Place, centre: bool) -> None:
    nms = Nms(2, 4, 500, 500, 60, 0.5, 0.25, centre)
    boxes, scores, order = _random(nms)
    boxes[:, ::3] = boxes[:, ::3][..., [2, 1, 0, 3]] if not centre else boxes[:, ::3]  # corners in any order
    wanted = _onnxruntime(nms, boxes, scores.reshape(nms.batch, nms.classes, nms.boxes))
    for config in configs_of(nms.workload(), place.target):
        kept, count = Compiled.of(nms.workload(), config, place)(boxes, scores, order)
        found = [
            (row // nms.classes, row % nms.classes, index)
            for row in range(nms.rows)
            for index in kept[row, : count[row]]
        ]
        assert found == [tuple(row) for row in wanted.tolist()]


@pytest.mark.parametrize("wrong", [(1, 1, 5, 6, 5, 0.5), (1, -1, 5, 5, 5, 0.5), (1, 1, 5, 5, -1, 0.5)])
def test_sizes_that_do_not_fit_are_refused(wrong: tuple) -> None:
    with pytest.raises(ValueError, match="nms: "):
        Nms(*wrong)


def test_nothing_is_done_where_nothing_is() -> None:
    for empty in ((0, 1, 5, 5, 5, 0.5), (1, 1, 5, 0, 5, 0.5), (1, 1, 5, 5, 0, 0.5)):
        assert TEMPLATE.space(Nms(*empty).workload(), Place.named("host").target) is None
