"""The target of a board's CPU from what its agent reports."""

from __future__ import annotations

import pytest
from tvm.target import Target

from tuner.devices.cpu import family
from tuner.devices.remote import cpu_of, is_board, place_on_board
from tuner.errors import BadInput


def facts(machine: str, flags: str = "", part: str = "") -> dict[str, object]:
    return {"machine": machine, "cpu_flags": flags.split(), "cpu_ids": ["0x41", part]}


@pytest.mark.parametrize(
    ("reported", "mcpu", "shared"),
    [
        (facts("aarch64", part="0xd08"), "cortex-a72", "aarch64-neon"),
        (facts("aarch64", part="0x999"), "generic", "aarch64-neon"),
        (facts("x86_64", "avx2 fma bmi2"), "x86-64-v3", "x86_64-avx2"),
        (facts("x86_64", "avx2 fma bmi2 avx512f avx512bw avx512dq avx512vl"), "x86-64-v4", "x86_64-avx512"),
        (facts("x86_64", "avx2 fma bmi2 avx512f"), "x86-64-v3", "x86_64-avx2"),
        (facts("x86_64", "sse4_2"), "x86-64-v2", "x86_64-sse4"),
    ],
)
def test_nothing_is_compiled_for_more_than_the_board_has(reported, mcpu: str, shared: str) -> None:
    target = Target(cpu_of(reported, 4))
    assert target.attrs["mcpu"] == mcpu
    assert family(reported["machine"], target) == shared


def test_another_architecture_is_refused() -> None:
    with pytest.raises(BadInput, match="riscv64"):
        cpu_of(facts("riscv64"), 1)


def test_names() -> None:
    assert is_board("board:pi")
    assert not is_board("cpu")
    assert place_on_board("board:pi") == ("pi", "cpu")
    assert place_on_board("board:pi/opencl:0") == ("pi", "opencl:0")
