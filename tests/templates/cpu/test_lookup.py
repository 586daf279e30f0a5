"""Bytes are looked up in whole vectors, and whatever remains one by one."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm.target import Target

from templates.cpu.lookup import looks_up_vectors, lookup
from templates.lowering import build
from tests.templates.support import host_target
from tuner.devices.profiles import all_profiles


@pytest.mark.skipif(not looks_up_vectors(host_target()), reason="the processor has no AVX512-VBMI")
@given(st.integers(1, 9000), st.integers(0, 2**32 - 1))
@settings(max_examples=25, deadline=None)
def test_every_index(count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    table, indices = rng.integers(0, 256, 256).astype(np.uint8), rng.integers(0, 256, count).astype(np.uint8)
    out = tvm.runtime.tensor(np.zeros(count, np.uint8))
    build(lookup(count), host_target())["main"](tvm.runtime.tensor(table), tvm.runtime.tensor(indices), out)
    np.testing.assert_array_equal(out.numpy(), table[indices])


def test_two_instructions_look_up_a_vector() -> None:
    target = Target({"kind": "llvm", "mtriple": "x86_64-unknown-linux-gnu", "mcpu": "znver4"})
    assert looks_up_vectors(target)
    code = build(lookup(4096), target).inspect_source("asm")
    found = code.count("vpermi2b") + code.count("vpermt2b")
    assert found == 2 * code.count("vmovdqu8")  # which stores a vector that is chosen by a mask


def test_other_processors_have_no_such_instruction() -> None:
    assert not any(looks_up_vectors(p.target()) for p in all_profiles() if "arm" in p.name or "cortex" in p.name)
