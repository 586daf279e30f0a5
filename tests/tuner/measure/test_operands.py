"""Operands in the layouts of a template, and cold copies of its weight."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import templates
from templates.template import anchor_template, search_space
from templates.workloads import Conv2d
from tuner.devices import open_device
from tuner.measure.targets.cold_weights import HostColdWeight
from tuner.measure.targets.executor import Host
from tuner.measure.targets.kinds import NORMAL
from tuner.measure.targets.operands import AnchorOperands


@given(st.integers(1, 700), st.integers(1, 40_000))
def test_copies_exceed_the_cold_size_and_are_all_the_weight(values, cold_bytes):
    weight = np.arange(values, dtype=np.float32)
    cold = HostColdWeight(weight, cold_bytes)
    assert cold.nbytes >= cold_bytes
    first = cold.next()
    addresses = {np.from_dlpack(first).ctypes.data}
    np.testing.assert_array_equal(first.numpy(), weight)
    while (address := np.from_dlpack(tensor := cold.next()).ctypes.data) not in addresses:
        addresses.add(address)
        np.testing.assert_array_equal(tensor.numpy(), weight)
    # Every copy was handed out before the first came again, and none overlaps another.
    assert address == np.from_dlpack(first).ctypes.data
    assert len(addresses) * weight.nbytes <= cold.nbytes <= len(addresses) * (weight.nbytes + 64)
    assert all(a % 64 == 0 for a in addresses)


def test_a_weight_beyond_the_cold_size_has_one_copy():
    cold = HostColdWeight(np.zeros(1000, np.float32), 100)
    assert np.from_dlpack(cold.next()).ctypes.data == np.from_dlpack(cold.next()).ctypes.data


@pytest.fixture(scope="module")
def conv():
    """Operands of a convolution whose channels do not fill their last block, and a blocked template for it."""
    assert templates is not None
    target = open_device("cpu", 1).target
    workload = Conv2d(1, 20, 6, 6, 20, (3, 3), padding=(1, 1, 1, 1)).workload(("bias", "add", "relu"))
    space = search_space(workload, target, only=["cpu.conv2d_direct"])
    assert space is not None
    config = next(iter(space))
    return (
        AnchorOperands(workload, target, Host(1, [0], None), seed=3),
        anchor_template(config.template),
        config,
        target,
    )


def tensors(operands, template, config):
    weight = Host(1, [0], None).operand(operands.packed_weight(template, config))
    return {name: operand.tensor for name, operand in operands.operands(template, NORMAL, weight).items()}


def test_operands_are_in_the_templates_layouts(conv):
    operands, template, config, target = conv
    layouts = template.layouts(operands.workload, target)
    made = tensors(operands, template, config)
    assert list(made) == ["data", "weight", "bias0", "add1", "out"]
    data, _, bias, add, out = made.values()
    assert tuple(data.shape) == layouts.data.shape((1, 20, 6, 6))
    assert tuple(add.shape) == tuple(out.shape) == layouts.out.shape((1, 20, 6, 6))
    assert bias.numpy().size == np.prod(tuple(out.shape)) // 36
    assert operands.packed_weight(template, config) is operands.packed_weight(template, config)
    assert operands.nbytes > 0


def test_channels_that_fill_up_a_block_are_not_zero(conv):
    operands, template, config, target = conv
    data = tensors(operands, template, config)["data"]
    block = template.layouts(operands.workload, target).data.block
    assert block
    assert 20 % block
    assert (data.numpy()[:, -1, ..., 20 % block :] != 0).all()


def test_same_seed_same_operands_and_error_tells_right_from_wrong(conv):
    operands, template, config, target = conv
    again = AnchorOperands(operands.workload, target, Host(1, [0], None), seed=3)
    other = AnchorOperands(operands.workload, target, Host(1, [0], None), seed=4)
    data, again, other = (tensors(o, template, config)["data"].numpy() for o in (operands, again, other))
    np.testing.assert_array_equal(data, again)
    assert (data != other).any()
    written = tensors(operands, template, config)["out"]
    out = np.from_dlpack(written)
    layout = template.layouts(operands.workload, target).out
    out[...] = layout.pack(operands.expected().astype(np.float32))
    assert operands.error(template, written) < 1e-6
    out[0, 0, 0, 0, 0] += 1
    assert operands.error(template, written) > 1e-3
    out[0, 0, 0, 0, 0] = np.nan
    assert operands.error(template, written) == float("inf")
