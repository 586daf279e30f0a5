"""Register tiles that divide neither the pixels nor the output blocks: a narrower last tile, blocks of zeros."""

from __future__ import annotations

from typing import Any

import pytest

from templates.cpu.direct import DirectConv, DirectConvPlain
from templates.cpu.isa import vector_unit
from templates.cpu.winograd import Winograd
from templates.template import AnchorTemplate
from templates.workloads import Conv2d
from tests.templates.support import Compiled, host_target
from tuning_db.record import Config, Workload

LANES = vector_unit(host_target()).lanes
BLOCKS = 16  # output blocks: 3 do not divide them


def _workload(size: int, **more: Any) -> Workload:
    conv = Conv2d(1, more.pop("channels", 4 * LANES), size, size, BLOCKS * LANES, **more)
    return conv.workload(("bias", "add", "relu"))


STRIDED = _workload(14, kernel=(3, 3), strides=(2, 2), padding=(1, 1, 1, 1))
FLAT = _workload(7, kernel=(1, 1))
FIRST = _workload(19, kernel=(3, 3), padding=(1, 1, 1, 1), channels=3)
SQUARE = _workload(7, kernel=(3, 3), padding=(1, 1, 1, 1))


def _error(template: AnchorTemplate, workload: Workload, **knobs: Any) -> float:
    target = host_target()
    space = template.space(workload, target)
    assert space is not None
    first = space.seed_configs()[0]
    config = Config(template.name, {**first.knobs, **knobs})
    assert space.why_invalid(config) is None
    return Compiled(template, workload, target, config).error()


@pytest.mark.parametrize("prefetch", [0, 1])
@pytest.mark.parametrize("knobs", [{"skip": 1}, {"skip": 0, "groups": 7}, {"skip": 0, "unroll_kw": 1, "ui": 1}])
def test_direct(prefetch: int, knobs: dict[str, int]) -> None:
    chosen = {"ob": 3, "tw": 4, "th": 1, "ui": 2, "groups": 1, "chunk": 0, "prefetch": prefetch, **knobs}
    assert _error(DirectConv(), STRIDED, **chosen) < 2e-6


@pytest.mark.parametrize("skip", [0, 1])
@pytest.mark.parametrize("groups", [1, 7])
@pytest.mark.parametrize("chunk", [1, 2])
def test_direct_in_chunks(chunk: int, groups: int, skip: int) -> None:
    chosen = {"ob": 3, "tw": 4, "th": 1, "ui": 2, "groups": groups, "chunk": chunk, "skip": skip, "prefetch": 0}
    assert _error(DirectConv(), STRIDED, **chosen) < 2e-6


@pytest.mark.parametrize("padding", [(2, 1, 0, 1), (0, 1, 2, 1)])
def test_kernel_rows_that_only_meet_padding_are_skipped_and_no_others(padding: tuple[int, ...]) -> None:
    workload = _workload(7, kernel=(3, 3), padding=padding)
    assert _error(DirectConv(), workload, ob=3, tw=7, th=1, ui=2, groups=1, chunk=0, skip=1, prefetch=0) < 2e-6


def test_direct_over_flat_pixels() -> None:
    assert _error(DirectConv(), FLAT, ob=3, tw=4, th=1, groups=1, chunk=0, prefetch=0) < 2e-6


def test_a_first_layer() -> None:
    assert _error(DirectConvPlain(), FIRST, ob=3, tw=4, th=1, groups=1, chunk=0, skip=0) < 2e-6


@pytest.mark.parametrize("blocks", ["outer", "inner"])
@pytest.mark.parametrize("prefetch", [0, 1])
def test_winograd(blocks: str, prefetch: int) -> None:
    chosen = {"m": 2, "at": "root", "rows": 2, "tiles": 3, "ob": 3, "blocks": blocks, "pad": "root"}
    assert _error(Winograd(), SQUARE, prefetch=prefetch, **chosen) < 3e-5


def test_winograd_over_several_images() -> None:
    workload = Conv2d(2, LANES, 9, 13, 2 * LANES, (3, 3), padding=(1, 1, 1, 1)).workload(("bias",))
    chosen = {"m": 4, "at": "root", "rows": 3, "tiles": 5, "ob": 2, "blocks": "outer", "pad": "root", "prefetch": 0}
    assert _error(Winograd(), workload, **chosen) < 3e-5


@pytest.mark.parametrize("template", [DirectConv(), Winograd()])
def test_only_blocks_of_zeros_need_a_weight_of_their_own(template: AnchorTemplate) -> None:
    target, space = host_target(), template.space(SQUARE, host_target())
    assert space is not None
    first = space.seed_configs()[0]
    configs = [Config(template.name, {**first.knobs, "ob": ob}) for ob in (1, 2, 4, 3)]
    keys = [template.weight_key(SQUARE, target, config) for config in configs]
    assert keys[0] == keys[1] == keys[2] != keys[3]


def test_a_group_takes_only_whole_tiles() -> None:
    space = Winograd().space(SQUARE, host_target())
    assert space is not None
    first = space.seed_configs()[0].knobs
    chosen = {**first, "m": 2, "at": "group", "rows": 1, "tiles": 3, "ob": 1, "prefetch": 0}
    assert space.why_invalid(Config(Winograd.name, chosen)) == "register tiles do not divide a group"
