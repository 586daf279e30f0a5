"""What torchvision computes, ours do: suppression, pooling of regions, region proposals. Its release has to be built
for the torch that is installed, which no wheel on PyPI is for torch without CUDA."""

from __future__ import annotations

import numpy as np
import pytest

from tests.vision_ops.support import Compiled, Place, configs_of, place
from vision_ops.nms import Nms, NmsOperator
from vision_ops.proposal import TOO_SMALL, Proposal, ProposalOperator
from vision_ops.roi_align import RoiAlign, RoiAlignOperator
from vision_ops.roi_pool import RoiPool, RoiPoolOperator

torch = pytest.importorskip("torch")
try:
    from torchvision import ops
    from torchvision.models.detection._utils import BoxCoder
except (ImportError, RuntimeError) as error:  # RuntimeError: its library cannot be loaded beside this torch
    pytest.skip(f"torchvision: {error}", allow_module_level=True)

__all__ = ["place"]


def _tensors(*arrays: np.ndarray) -> list:
    return [torch.from_numpy(np.ascontiguousarray(array)) for array in arrays]


@pytest.mark.parametrize("by_id", [False, True])
def test_it_keeps_the_same_boxes(place: Place, by_id: bool) -> None:
    nms = Nms(1, 1, 700, 700, 700, 0.45, by_id=by_id)
    inputs = NmsOperator().random_inputs(nms.workload(), np.random.default_rng(0))
    boxes, scores, *ids = _tensors(*(inputs[i][0] for i in ((0, 1, 3) if by_id else (0, 1))))
    wanted = ops.batched_nms(boxes, scores, ids[0], nms.iou) if by_id else ops.nms(boxes, scores, nms.iou)
    for config in configs_of(nms.workload(), place.target):
        kept, count = Compiled.of(nms.workload(), config, place)(*inputs)
        assert kept[0, : count[0]].tolist() == wanted.tolist()


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("ratio", [0, 2])
def test_it_aligns_regions_alike(place: Place, ratio: int, aligned: bool) -> None:
    roi = RoiAlign(2, 6, 21, 17, 12, 4, 5, 0.25, ratio, "avg", aligned)
    inputs = RoiAlignOperator().random_inputs(roi.workload(), np.random.default_rng(1))
    data, rois, maps = _tensors(*inputs)
    regions = torch.cat([maps[:, None].float(), rois], 1)
    wanted = ops.roi_align(data, regions, (4, 5), roi.scale, ratio or -1, aligned).numpy()
    config = configs_of(roi.workload(), place.target)[0]
    (out,) = Compiled.of(roi.workload(), config, place)(*inputs)
    np.testing.assert_allclose(out, wanted, rtol=1e-4, atol=1e-5)


def test_it_pools_regions_alike(place: Place) -> None:
    roi = RoiPool(2, 6, 21, 17, 12, 4, 5, 0.25)
    inputs = RoiPoolOperator().random_inputs(roi.workload(), np.random.default_rng(2))
    data, rois, maps = _tensors(*inputs)
    wanted = ops.roi_pool(data, torch.cat([maps[:, None].float(), rois], 1), (4, 5), roi.scale).numpy()
    config = configs_of(roi.workload(), place.target)[0]
    (out,) = Compiled.of(roi.workload(), config, place)(*inputs)
    np.testing.assert_array_equal(out, wanted)


def test_it_proposes_the_same_regions(place: Place) -> None:
    rpn = Proposal(1, 5, 9, 7, 16.0, 16.0, 140.0, 110.0, least=12.0)
    inputs = ProposalOperator().random_inputs(rpn.workload(), np.random.default_rng(3))
    logits, moves, anchors = _tensors(*inputs)
    y, x = torch.meshgrid(torch.arange(9) * 16.0, torch.arange(7) * 16.0, indexing="ij")
    grid = (torch.stack([x, y, x, y], -1).reshape(-1, 1, 4) + anchors).reshape(-1, 4)
    codes = moves.reshape(5, 4, 63).permute(2, 0, 1).reshape(-1, 4)
    boxes = ops.clip_boxes_to_image(BoxCoder((1.0,) * 4).decode(codes, [grid])[:, 0], (140, 110))
    large = ops.remove_small_boxes(boxes, rpn.least)
    scores = torch.full((315,), TOO_SMALL)
    scores[large] = logits[0].T.reshape(-1).sigmoid()[large]
    assert 20 < len(large) < 300
    config = configs_of(rpn.workload(), place.target)[0]
    found = Compiled.of(rpn.workload(), config, place)(*inputs)
    np.testing.assert_allclose(found[0][0], boxes.numpy(), rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(found[1][0], scores.numpy(), rtol=1e-4, atol=1e-5)
