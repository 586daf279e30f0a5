"""The target of a board's CPU from what its agent reports."""

from __future__ import annotations

import pytest
from tvm.target import Target

from templates.cpu.isa import computes_in
from templates.gpu.limits import gpu_limits
from tuner.devices.board import KIND, place_on_board, places_on_board
from tuner.devices.cpu import family
from tuner.devices.cpu.on_boards import cpu_of
from tuner.devices.cuda.on_boards import CudaOnBoards
from tuner.devices.profiles import profile_named
from tuner.errors import BadInput
from tuning_db.record import DeviceKey


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


@pytest.mark.parametrize(
    ("reported", "halves"),
    [
        (facts("aarch64", "asimd asimdhp", "0xd0b"), True),
        (facts("aarch64", "asimd", "0xd08"), False),
        (facts("aarch64", "asimd asimdhp", "0x999"), True),  # a core that has no name here says what it has
        (facts("aarch64", "asimd", "0x999"), False),
        (facts("x86_64", "avx2 fma bmi2"), False),
    ],
)
def test_boards_with_arithmetic_in_halves(reported, halves: bool) -> None:
    assert computes_in(Target(cpu_of(reported, 4)), "float16") is halves


def test_another_architecture_is_refused() -> None:
    with pytest.raises(BadInput, match="riscv64"):
        cpu_of(facts("riscv64"), 1)


def test_names() -> None:
    assert KIND.recognises("board:pi")
    assert not KIND.recognises("cpu")
    assert place_on_board("board:pi") == ("pi", "cpu")
    assert place_on_board("board:pi/opencl:0") == ("pi", "opencl:0")
    assert place_on_board("board:pi/cuda:1") == ("pi", "cuda:1")
    with pytest.raises(BadInput, match="/opencl:N or /cuda:N"):
        place_on_board("board:pi/vulkan:0")
    for both in ("board:pi/opencl:0,board:pi", "board:pi/opencl:0,cpu", "board:pi/opencl:0, board:pi/cpu"):
        assert places_on_board(both) == ("pi", ["opencl:0", "cpu"])
    for several in ("board:a+b", "board:a/opencl:0,board:b"):
        with pytest.raises(BadInput, match="networks are built for one board at a time"):
            places_on_board(several)


def orin() -> dict[str, object]:
    """As board_agent.cuda describes it."""
    sizes = {"compute_units": 16, "max_threads": 1024, "shared_memory_bytes": 48 << 10, "warp": 32}
    memory = {"memory_bytes": 30 << 30, "cache_bytes": 4 << 20}
    return {"kind": "cuda", "name": "Orin", "capability": [8, 7], **sizes, **memory}


def _key(described: dict[str, object]) -> DeviceKey:
    return CudaOnBoards().key({}, described, Target("llvm"), 1)


def test_a_jetson_is_the_device_of_its_profile() -> None:
    profile, key = profile_named("jetson-orin"), _key(orin())
    expected = profile.key()
    assert (key.kind, key.family, key.model) == (expected.kind, expected.family, expected.model)
    assert key.attrs == {name: value for name, value in expected.attrs.items() if name != "clock_mhz"}
    device = CudaOnBoards().device("board:jetson/cuda:0", {}, orin(), None)
    assert gpu_limits(device.target) == gpu_limits(profile.target())
    assert (device.cache_bytes, device.memory_bytes) == (4 << 20, 30 << 30)
    with pytest.raises(BadInput, match="'warp'"):
        _key({name: value for name, value in orin().items() if name != "warp"})
