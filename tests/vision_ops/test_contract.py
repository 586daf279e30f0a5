"""What holds for every operator without a weight: on the host, on drivers, for devices that are not here."""

from __future__ import annotations

import numpy as np
import pytest

from templates.attention import Attention
from templates.batch_matmul import BatchMatmul
from templates.cpu.dot_products import products_of
from templates.four_bits import FourBits
from templates.gpu.checks import violations
from templates.gpu.limits import gpu_limits_of
from templates.gpu.lowered import lower
from templates.integers import INTEGERS
from templates.operator import all_operators, operator_named
from templates.template import all_templates, search_space, template_named
from tests.templates.attentions import ALONG_CHANNELS_MASKED, ONE_PROJECTION
from tests.vision_ops.support import Compiled, Place, configs_of, place
from tuner.devices.profiles import all_profiles
from tuning_db.record import Workload
from vision_ops.argsort import Argsort
from vision_ops.compact import Compact
from vision_ops.multibox_decode import MultiboxDecode
from vision_ops.multibox_prior import MultiboxPrior
from vision_ops.nms import Nms
from vision_ops.proposal import Proposal
from vision_ops.recurrent_layer import Recurrent
from vision_ops.resize import Resize
from vision_ops.roi_align import RoiAlign
from vision_ops.roi_pool import RoiPool
from vision_ops.scan import Scan
from vision_ops.yolo import YoloDecode

__all__ = ["place"]
pytestmark = pytest.mark.sampled(12)
WORKLOADS = {
    "scan": Scan(2, 5000, 3).workload(),
    "scan of maxima": Scan(1, 30_000, kind="max", exclusive=True, reverse=True).workload("int32"),
    "argsort": Argsort(2, 3000, 3000).workload(),
    "top k": Argsort(20, 2000, 100, descending=True).workload(),
    "segments": Argsort(1, 3000, 3000, segments=40).workload("int32"),
    "argsort of some": Argsort(7, 1500, 1000, descending=True, counted=True).workload(),
    "compact": Compact(3, 4001, 0.25).workload(),
    "nms": Nms(1, 1, 1000, 1000, 1000, 0.5).workload(),
    "nms of classes": Nms(2, 5, 600, 400, 100, 0.45, score=0.2, centre=True).workload(),
    "roi align": RoiAlign(2, 20, 25, 30, 9, 7, 5, 0.25).workload(),
    "roi pool": RoiPool(2, 20, 25, 30, 9, 7, 5, 0.25).workload(),
    "multibox prior": MultiboxPrior(19, 13, 6).workload(),
    "multibox decode": MultiboxDecode(2, 21, 1001).workload(),
    "yolo decode": YoloDecode(2, 3, 20, 13, 11, 32.0).workload(),
    "proposal": Proposal(2, 9, 25, 19, 16.0, 16.0, 400.0, 304.0, 4.0).workload(),
    "resize": Resize(20, 13, 17, 1, 26, 29).workload(),
    "resize blocks": Resize(2, 13, 17, 16, 20, 11, 4).workload(),
    "batch_matmul": BatchMatmul(3, 29, 37, 53).workload(),
    "batch_matmul, transposed": BatchMatmul(2, 49, 32, 64, transposed=True).workload(),
    "batch_matmul of columns": BatchMatmul(2, 40, 7, 3).workload(),
    "batch_matmul of bytes": BatchMatmul(3, 29, 37, 53).workload(INTEGERS),
    "batch_matmul of bytes, transposed": BatchMatmul(2, 49, 32, 64, transposed=True).workload(INTEGERS),
    "attention": Attention(2, 3, 29, 37, 20, 24, scale=0.2).workload(),
    "attention of one projection": ONE_PROJECTION.workload(),
    "attention along channels, masked": ALONG_CHANNELS_MASKED.workload(),
    "lstm": Recurrent(7, 2, 64, 2).workload(),
    "lstm, backwards": Recurrent(5, 1, 48, reverse=True).workload(),
    "gru": Recurrent(6, 3, 32, 2, "gru").workload(),
    "rnn": Recurrent(6, 1, 128, 1, "rnn").workload(),
    "lstm of eight bits": Recurrent(7, 2, 64, 2).workload("int8"),
    "gru of eight bits": Recurrent(6, 3, 32, 2, "gru").workload("int8"),
    "dense of four bits": FourBits(5, 96, 40).workload(),
    "dense of four bits with zero points": FourBits(1, 128, 112, 16, zeros=True).workload(),
    "nms by id": Nms(1, 1, 600, 600, 200, 0.45, by_id=True).workload(),
}
PROFILES = {profile.name: profile for profile in all_profiles()}
EVERY = pytest.mark.parametrize("name", WORKLOADS)
GPU_WORKLOADS = {name: w for name, w in WORKLOADS.items() if w.op != FourBits.op and w.dtype != INTEGERS}
GPUS_TOO = pytest.mark.parametrize("name", GPU_WORKLOADS)


def _skip_without_kernels(place: Place, name: str) -> None:
    """Skip matrices of few bits where there is no instruction for them: such devices get them in float32."""
    if name not in GPU_WORKLOADS and search_space(WORKLOADS[name], place.target) is None:
        assert place.target.kind.name != "llvm" or products_of(place.target) is None
        pytest.skip("this device gets the matrices in float32")


def test_every_operator_is_here() -> None:
    ours = {operator.op for operator in all_operators()}
    assert {workload.op for workload in WORKLOADS.values()} == ours
    assert ours <= {template.op for template in all_templates()}


@EVERY
def test_its_configs_compute_the_reference(place: Place, name: str) -> None:
    _skip_without_kernels(place, name)
    workload = WORKLOADS[name]
    inputs = operator_named(workload.op).random_inputs(workload, np.random.default_rng(3))
    for config in configs_of(workload, place.target, samples=2, seed=1):
        assert Compiled.of(workload, config, place).error(*inputs) <= 1e-5, config.key


@GPUS_TOO
@pytest.mark.parametrize("profile", PROFILES)
def test_every_profile_allows_what_is_compiled_for_it(profile: str, name: str) -> None:
    """Its launches, its memory, no barrier where items part ways, and nothing left on the host."""
    target = PROFILES[profile].target()
    for config in configs_of(WORKLOADS[name], target, samples=4):
        lowered = lower(template_named(config.template).prim_func(WORKLOADS[name], target, config), target)
        assert violations(lowered, gpu_limits_of(target)) == []


@EVERY
def test_seeds_are_configs_of_the_space(place: Place, name: str) -> None:
    _skip_without_kernels(place, name)
    space = search_space(WORKLOADS[name], place.target)
    assert space is not None
    for part in space.spaces:
        assert {part.config(seed) for seed in part.seeds} == set(part.seed_configs()) != set()


@EVERY
def test_inputs_and_references_are_as_specified(name: str) -> None:
    workload: Workload = WORKLOADS[name]
    operator = operator_named(workload.op)
    first, again = (operator.random_inputs(workload, np.random.default_rng(5)) for _ in range(2))
    for spec, array, same in zip(operator.inputs(workload), first, again, strict=True):
        assert (array.shape, str(array.dtype)) == (spec.shape, spec.dtype)
        assert np.array_equal(array, same)
    results = operator.reference(workload, first)
    assert [r.shape for r in results] == [o.shape for o in operator.outputs(workload)]
    assert operator.error(workload, results, results) == 0
    wrong = [r + 1 for r in results]
    assert operator.error(workload, wrong, results) > 1e-4
