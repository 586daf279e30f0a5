"""ROIPool: against a reference in NumPy, onnxruntime's results, and regions that are none."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from tests.vision_ops.support import Compiled, Place, configs_of, place
from vision_ops.roi_pool import RoiPool, RoiPoolOperator

__all__ = ["place"]


def _random(roi: RoiPool, seed: int = 0) -> tuple[np.ndarray, ...]:
    return RoiPoolOperator().random_inputs(roi.workload(), np.random.default_rng(seed))


@pytest.mark.sampled(6)
@settings(max_examples=15, deadline=None)
@given(st.data())
def test_any_regions_with_any_config(data: st.DataObject) -> None:
    host, size = Place.named("host"), st.integers(1, 9)
    roi = RoiPool(*(data.draw(size) for _ in range(7)), data.draw(st.sampled_from([0.1, 1.0, 3.0])))
    seed = data.draw(st.integers(0, 99))
    config = configs_of(roi.workload(), host.target, samples=3, seed=seed)[-1]
    assert Compiled.of(roi.workload(), config, host).error(*_random(roi, seed)) == 0


def _onnxruntime(roi: RoiPool, data: np.ndarray, rois: np.ndarray, maps: np.ndarray) -> np.ndarray:
    size = [roi.out_height, roi.out_width]
    node = helper.make_node("MaxRoiPool", ["data", "rois"], ["out"], pooled_shape=size, spatial_scale=roi.scale)
    regions = np.concatenate([maps[:, None].astype(np.float32), rois], 1)
    given = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, array.shape)
        for name, array in (("data", data), ("rois", regions))
    ]
    out = helper.make_tensor_value_info("out", TensorProto.FLOAT, roi.out_shape)
    opset = [helper.make_opsetid("", 17)]
    model = helper.make_model(helper.make_graph([node], "g", given, [out]), opset_imports=opset, ir_version=8)
    onnx.checker.check_model(model)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"data": data, "rois": regions})[0]


@pytest.mark.sampled(3)
def test_onnxruntime_has_the_same(place: Place) -> None:
    roi = RoiPool(2, 6, 21, 17, 12, 4, 3, 0.25)
    inputs = _random(roi)
    for config in configs_of(roi.workload(), place.target):
        (out,) = Compiled.of(roi.workload(), config, place)(*inputs)
        np.testing.assert_array_equal(out, _onnxruntime(roi, *inputs))


@pytest.mark.sampled(3)
def test_halves_are_rounded_away_from_zero(place: Place) -> None:
    roi = RoiPool(1, 1, 6, 6, 2, 1, 1)
    data = np.arange(36, dtype=np.float32).reshape(1, 1, 6, 6)
    rois = np.array([[0, 0, 2.5, 1.5], [-0.5, -0.5, 0.4, 0.4]], np.float32)
    config = configs_of(roi.workload(), place.target)[0]
    (out,) = Compiled.of(roi.workload(), config, place)(data, rois, np.zeros(2, np.int32))
    assert out.reshape(-1).tolist() == [15, 0]  # up to row 2, column 3; row and column 0


@pytest.mark.sampled(3)
def test_regions_and_maps_that_are_none_lead_nowhere_outside(place: Place) -> None:
    roi = RoiPool(2, 3, 9, 9, 5, 2, 2)
    data, rois, _ = _random(roi)
    rois[:] = np.array([[np.nan] * 4, [-np.inf, 0, np.inf, 5], [1e30, 1e30, 2e30, 2e30], [5, 5, -5, -5], [0, 0, 0, 0]])
    maps = np.array([-(2**31), 2**31 - 1, 7, -1, 1], np.int32)
    for config in configs_of(roi.workload(), place.target):
        (out,) = Compiled.of(roi.workload(), config, place)(data, rois, maps)
        assert (out[[0, 2]] == 0).all()
        assert Compiled.of(roi.workload(), config, place).error(data, rois, maps) == 0
