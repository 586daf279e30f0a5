"""ROIAlign: against a reference in NumPy, onnxruntime's results, and regions that are none."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from templates.template import template_named
from tests.vision_ops.support import Compiled, Place, configs_of, place
from vision_ops.roi_align import MODES, RoiAlign, RoiAlignOperator

__all__ = ["place"]


def _random(roi: RoiAlign, seed: int = 0) -> tuple[np.ndarray, ...]:
    return RoiAlignOperator().random_inputs(roi.workload(), np.random.default_rng(seed))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("ratio", [0, 2])
def test_the_references_values(ratio: int, mode: str) -> None:
    host = Place.named("host")
    roi = RoiAlign(2, 7, 19, 23, 11, 5, 3, 0.5, ratio, mode, aligned=ratio == 0)
    for config in configs_of(roi.workload(), host.target, samples=2):
        assert Compiled.of(roi.workload(), config, host).error(*_random(roi)) <= 1e-5


@pytest.mark.sampled(2)
@settings(max_examples=8, deadline=None)
@given(st.data())
def test_any_regions_with_any_config(data: st.DataObject) -> None:
    host, size = Place.named("host"), st.integers(1, 9)
    roi = RoiAlign(
        *(data.draw(size) for _ in range(7)),
        data.draw(st.sampled_from([0.1, 1.0, 3.0])),
        data.draw(st.integers(0, 3)),
        data.draw(st.sampled_from(MODES)),
        data.draw(st.booleans()),
    )
    seed = data.draw(st.integers(0, 99))
    config = configs_of(roi.workload(), host.target, samples=3, seed=seed)[-1]
    assert Compiled.of(roi.workload(), config, host).error(*_random(roi, seed)) <= 1e-5


def _onnxruntime(roi: RoiAlign, *inputs: np.ndarray) -> np.ndarray:
    from onnxruntime import InferenceSession

    node = helper.make_node(
        "RoiAlign",
        ["data", "rois", "maps"],
        ["out"],
        mode={"avg": "avg", "max_corner": "max"}[roi.mode],
        output_height=roi.out_height,
        output_width=roi.out_width,
        sampling_ratio=roi.ratio,
        spatial_scale=roi.scale,
        coordinate_transformation_mode="half_pixel" if roi.aligned else "output_half_pixel",
    )
    kinds = [TensorProto.FLOAT, TensorProto.FLOAT, TensorProto.INT64]
    given = [
        helper.make_tensor_value_info(n, k, a.shape)
        for n, k, a in zip(("data", "rois", "maps"), kinds, inputs, strict=True)
    ]
    graph = helper.make_graph(
        [node], "g", given, [helper.make_tensor_value_info("out", TensorProto.FLOAT, roi.out_shape)]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"data": inputs[0], "rois": inputs[1], "maps": inputs[2].astype(np.int64)})[0]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mode", ["avg", "max_corner"])
@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("ratio", [0, 3])
def test_onnxruntime_has_the_same_results(ratio: int, aligned: bool, mode: str) -> None:
    host = Place.named("host")
    roi = RoiAlign(2, 6, 21, 17, 12, 4, 4, 0.25, ratio, mode, aligned)
    inputs = _random(roi)
    config = configs_of(roi.workload(), host.target)[0]
    (out,) = Compiled.of(roi.workload(), config, host)(*inputs)
    np.testing.assert_allclose(out, _onnxruntime(roi, *inputs), rtol=1e-4, atol=1e-5)


def test_samples_one_pixel_outside_have_the_borders_value_and_others_none() -> None:
    """Each region has one sample, in its middle, on the map's second row or column."""
    host, roi = Place.named("host"), RoiAlign(1, 1, 4, 5, 6, 1, 1, ratio=1, aligned=False)
    data = np.arange(1, 21, dtype=np.float32).reshape(1, 1, 4, 5)
    middles = [(1, 5), (1, 5.125), (4, 1), (4.125, 1), (1, -1), (-1.125, 1)]  # (y, x)
    rois = np.array([[x - 0.5, y - 0.5, x + 0.5, y + 0.5] for y, x in middles], np.float32)
    inputs = (data, rois, np.zeros(6, np.int32))
    expected = [10, 0, 17, 0, 6, 0]
    assert _onnxruntime(roi, *inputs).reshape(-1).tolist() == expected
    for config in configs_of(roi.workload(), host.target, samples=2):
        (out,) = Compiled.of(roi.workload(), config, host)(*inputs)
        assert out.reshape(-1).tolist() == expected


@pytest.mark.sampled(3)
def test_regions_and_maps_that_are_none_lead_nowhere_outside(place: Place) -> None:
    roi = RoiAlign(2, 3, 9, 9, 5, 2, 2)
    data, rois, _ = _random(roi)
    rois[:] = np.array([[np.nan] * 4, [-np.inf, 0, np.inf, 5], [1e30, 1e30, 2e30, 2e30], [5, 5, -5, -5], [0, 0, 0, 0]])
    maps = np.array([-(2**31), 2**31 - 1, 7, -1, 1], np.int32)
    for config in configs_of(roi.workload(), place.target):
        (out,) = Compiled.of(roi.workload(), config, place)(data, rois, maps)
        assert (out[2] == 0).all()  # far outside


@pytest.mark.parametrize("wrong", [{"mode": "sum"}, {"ratio": -1}, {"height": 0}, {"scale": 0.0}])
def test_what_is_no_region_pooling_is_refused(wrong: dict) -> None:
    sizes = {"batch": 1, "channels": 1, "height": 4, "width": 4, "rois": 1, "out_height": 2, "out_width": 2}
    with pytest.raises(ValueError, match="roi_align: "):
        RoiAlign(**{**sizes, **wrong})


def test_nothing_is_done_where_nothing_is() -> None:
    template = template_named("vision.roi_align")
    assert template.space(RoiAlign(1, 1, 4, 4, 0, 2, 2).workload(), Place.named("host").target) is None
