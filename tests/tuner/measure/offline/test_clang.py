"""OpenCL C for devices with different extensions: what is wrong is found, what is right passes."""

from __future__ import annotations

import pytest

from tests.tuner.measure.offline.support import compiler_or_skip
from tuner.errors import BadInput, CompileError
from tuner.measure.offline.clang import Clang

HALF = """#pragma OPENCL EXTENSION cl_khr_fp16 : enable
__kernel void k(__global half* a) { a[get_global_id(0)] = a[0] * 2; }"""
SUBGROUP = """__attribute__((intel_reqd_sub_group_size(16)))
__kernel void k(__global float* a) { a[get_global_id(0)] = intel_sub_group_shuffle(a[get_local_id(0)], 3); }"""
DOUBLE = "__kernel void k(__global double* a) { a[0] = a[1]; }"


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("__kernel void k(__global float* a) { a[0] = ; }", "expected expression"),
        ("__kernel void k(__global float* a) { __local float* b = a; b[0] = 1; }", "address space"),
        ("__kernel void k(__global float* a) { a[0] = frobnicate(a[1]); }", "frobnicate"),
        ("float frobnicate(float); __kernel void k(__global float* a) { a[0] = frobnicate(a[1]); }", "never defined"),
        (DOUBLE, "double"),
        (SUBGROUP, "intel_sub_group_shuffle"),
    ],
)
def test_a_fault_is_one_line_with_the_compilers_words(source, says):
    with pytest.raises(CompileError, match=says) as caught:
        compiler_or_skip("mali-t860", "clang").compile(source)
    assert str(caught.value).startswith("clang: ")
    assert "\n" not in str(caught.value)


def test_half_precision_needs_its_extension():
    compiler_or_skip("mali-t860", "clang").compile(HALF)
    with pytest.raises(CompileError, match="cl_khr_fp16"):
        Clang(()).compile(HALF)


def test_intels_functions_exist_for_intel():
    clang = compiler_or_skip("mali-t860", "clang")
    assert isinstance(clang, Clang)
    assert Clang(("cl_khr_fp16", "cl_intel_subgroups")).compile(SUBGROUP) == {}


def test_a_missing_clang_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BadInput, match=r"clang is not installed.*apt-get install clang"):
        Clang(())
