"""How a board feels and whether it was slowed down, read from trees of boards as Linux shows them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from board_agent.condition import condition, in_short, why_throttled

BIG = [4, 5]  # of six cores, as on an RK3399
GPU = None


class Board:
    """A tree of /sys in the making; `now` reads it."""

    def __init__(self, root: Path) -> None:
        self._sys, self._proc = root / "sys", root / "proc"
        self._proc.mkdir()
        (self._proc / "meminfo").write_text("MemTotal: 4000 kB\nMemAvailable: 1000 kB\n")

    def write(self, path: str, value: object) -> None:
        (self._sys / path).parent.mkdir(parents=True, exist_ok=True)
        (self._sys / path).write_text(f"{value}\n")

    def core(self, core: int, mhz: int, most: int, governor: str = "schedutil", driver: str = "cpufreq-dt") -> None:
        """One that may run at its highest clock."""
        shown = {"scaling_cur_freq": 1000 * mhz, "scaling_max_freq": 1000 * most, "cpuinfo_max_freq": 1000 * most}
        related = "0 1 2 3" if core < 4 else "4 5"
        more = {"scaling_governor": governor, "scaling_driver": driver, "related_cpus": related}
        for name, value in {**shown, **more}.items():
            self.write(f"devices/system/cpu/cpu{core}/cpufreq/{name}", value)

    def clock(self, core: int, mhz: int, name: str = "scaling_cur_freq") -> None:
        self.write(f"devices/system/cpu/cpu{core}/cpufreq/{name}", 1000 * mhz)

    def cooler(self, number: int, kind: str, state: int) -> None:
        self.write(f"class/thermal/cooling_device{number}/type", kind)
        self.write(f"class/thermal/cooling_device{number}/cur_state", state)

    def zone(self, degrees: float) -> None:
        """With a fan at 50, a passive trip point at 70 and the end at 95."""
        self.write("class/thermal/thermal_zone0/temp", int(1000 * degrees))
        for number, (kind, trip) in enumerate((("active", 50000), ("passive", 70000), ("critical", 95000))):
            self.write(f"class/thermal/thermal_zone0/trip_point_{number}_type", kind)
            self.write(f"class/thermal/thermal_zone0/trip_point_{number}_temp", trip)

    @property
    def now(self) -> dict[str, Any]:
        return condition(self._sys, self._proc)


@pytest.fixture
def board(tmp_path: Path) -> Board:
    """Like an RK3399 that is cool and has nothing to do."""
    made = Board(tmp_path)
    for core in range(6):
        made.core(core, 408, 1416 if core < 4 else 1800)
    made.cooler(0, "thermal-cpufreq-0", 0)
    made.cooler(1, "thermal-cpufreq-1", 0)
    made.cooler(2, "thermal-devfreq-0", 0)
    made.cooler(3, "pwm-fan", 2)
    made.zone(55)
    made.write("class/devfreq/ff9a0000.gpu/cur_freq", 200_000_000)
    made.write("class/devfreq/ff9a0000.gpu/max_freq", 800_000_000)
    made.write("class/devfreq/ff9a0000.gpu/available_frequencies", "200000000 400000000 800000000")
    made.write("class/devfreq/dmc/cur_freq", 400_000_000)
    return made


def test_how_it_feels(board: Board) -> None:
    board.write("class/thermal/thermal_zone1/temp", "asleep")
    board.write("devices/system/cpu/cpu0/thermal_throttle/core_throttle_count", 2)
    board.write("devices/system/cpu/cpu1/thermal_throttle/core_throttle_count", 3)
    found = board.now
    assert found["free_bytes"] == 1000 * 1024
    assert found["mhz"] == {f"cpu{core}": 408 for core in range(6)}
    assert (found["limits"]["cpu0"], found["limits"]["cpu5"]) == ([1416, 1416], [1800, 1800])
    assert found["degrees"] == {"thermal_zone0": 55}
    assert found["throttled"] == 5
    assert (found["gpu_mhz"], found["gpu_limits"]) == ({"ff9a0000.gpu": 200}, {"ff9a0000.gpu": [800, 800]})
    assert {"hot", "held", "firmware"}.isdisjoint(found)


def test_what_the_system_does_not_tell_is_not_there(tmp_path: Path) -> None:
    assert Board(tmp_path).now == {"free_bytes": 1000 * 1024}
    assert why_throttled({}, {}, [0]) == why_throttled({}, {}, GPU) == in_short({}, {}, [0]) == ""


@pytest.mark.parametrize("measured", [BIG, GPU])
def test_cores_that_had_nothing_to_do_are_not_throttled(board: Board, measured: list[int] | None) -> None:
    board.clock(0, 1416)
    board.clock(4, 1800)
    before = board.now
    board.clock(0, 408)
    board.clock(4, 408)
    board.write("class/devfreq/ff9a0000.gpu/cur_freq", 800_000_000)
    assert why_throttled(before, board.now, measured) == ""
    assert why_throttled(board.now, before, measured) == ""


def test_a_board_that_is_hot_all_the_time_is_throttled_all_the_time(board: Board) -> None:
    board.zone(85)
    board.cooler(1, "thermal-cpufreq-1", 3)
    assert why_throttled(board.now, board.now, BIG) == "thermal-cpufreq-1 (cooling_device1) is at 3"
    board.cooler(1, "thermal-cpufreq-1", 0)
    assert why_throttled(board.now, board.now, BIG) == ""
    board.clock(4, 600, "scaling_max_freq")
    assert why_throttled(board.now, board.now, BIG) == "cpu4 is hot and limited to 600 of 1800 MHz"
    board.zone(55)
    assert why_throttled(board.now, board.now, BIG) == ""  # somebody wants it so


def test_a_limit_that_comes_or_goes_is_the_systems(board: Board) -> None:
    before = board.now
    board.clock(5, 1608, "scaling_max_freq")
    assert why_throttled(before, board.now, BIG) == "the limit of cpu5 went from 1800 to 1608 MHz"
    assert why_throttled(board.now, before, BIG) == "the limit of cpu5 went from 1608 to 1800 MHz"
    assert why_throttled(before, board.now, [4]) == why_throttled(before, board.now, GPU) == ""


def test_coolers_of_others_do_not_count(board: Board) -> None:
    """Of a fan, of the other cores where the name tells, and of the GPU for cores, and the other way about."""
    board.cooler(4, "cpufreq-cpu0", 1)
    board.cooler(2, "devfreq-ff9a0000.gpu", 2)
    assert why_throttled(board.now, board.now, BIG) == ""
    assert "cpufreq-cpu0" in why_throttled(board.now, board.now, [2, 3])
    assert "devfreq-ff9a0000.gpu" in why_throttled(board.now, board.now, GPU)


def test_a_gpu_is_throttled_by_its_own_limit(board: Board) -> None:
    before = board.now
    board.write("class/devfreq/ff9a0000.gpu/max_freq", 400_000_000)
    assert why_throttled(before, board.now, GPU) == "the limit of ff9a0000.gpu went from 800 to 400 MHz"
    assert why_throttled(board.now, board.now, GPU) == ""
    board.zone(80)
    assert why_throttled(board.now, board.now, GPU) == "ff9a0000.gpu is hot and limited to 400 of 800 MHz"
    assert "hot" not in why_throttled(before, before, GPU)


@pytest.mark.parametrize(
    "reason", ["card0/gt/gt0/throttle_reason_thermal", "card1/device/tile0/gt0/freq0/throttle/reason_prochot"]
)
def test_intels_drivers_say_why(board: Board, reason: str) -> None:
    board.write(f"class/drm/{reason}", 0)
    assert why_throttled(board.now, board.now, GPU) == ""
    before = board.now
    board.write(f"class/drm/{reason}", 1)
    assert reason in why_throttled(before, board.now, GPU)
    assert why_throttled(before, board.now, BIG) == ""


def test_a_jetson_says_so_by_alerts(board: Board) -> None:
    board.cooler(4, "cpu-throttle-alert", 0)
    board.cooler(5, "gpu-throttle-alert", 1)
    assert why_throttled(board.now, board.now, BIG) == ""
    assert "gpu-throttle-alert" in why_throttled(board.now, board.now, GPU)
    board.cooler(4, "cpu-throttle-alert", 1)
    assert "cpu-throttle-alert" in why_throttled(board.now, board.now, BIG)


def test_a_raspberry_pi_says_so_by_its_firmware(board: Board) -> None:
    flags = "devices/platform/soc/soc:firmware/get_throttled"
    board.write(flags, "50000")  # it happened once, before
    before = board.now
    assert why_throttled(before, board.now, [0]) == ""
    board.write(flags, "50005")
    assert why_throttled(before, board.now, [0]) == "the firmware's flags are 0x50005"
    board.write(flags, "d0000")  # it happened meanwhile
    assert why_throttled(before, board.now, [0]) == "the firmware's flags are 0xd0000"


def test_x86_counts(board: Board) -> None:
    count = "devices/system/cpu/cpu0/thermal_throttle/package_throttle_count"
    board.write(count, 3)
    before = board.now
    assert why_throttled(before, board.now, BIG) == ""
    board.write(count, 5)
    assert why_throttled(before, board.now, BIG) == "cores were throttled 2 times"


def test_a_clock_that_is_held_at_its_limit_and_is_not_there(board: Board) -> None:
    for core in BIG:
        board.core(core, 1800, 1800, "performance")
    assert why_throttled(board.now, board.now, BIG) == ""
    board.clock(4, 1200)
    assert why_throttled(board.now, board.now, BIG) == "cpu4 runs at 1200 of 1800 MHz"
    assert why_throttled(board.now, board.now, [5]) == why_throttled(board.now, board.now, GPU) == ""
    board.core(4, 2900, 4700, "performance", "intel_pstate")  # a limit that one core reaches, alone
    assert why_throttled(board.now, board.now, [4]) == ""


def test_in_short(board: Board) -> None:
    before = board.now
    board.clock(4, 1800)
    board.zone(61.4)
    assert in_short(before, board.now, [4]) == "408>1800 MHz, 55>61 C"
    assert in_short(before, board.now, BIG) == "408 MHz, 55>61 C"
    assert in_short(before, board.now, GPU) == "200 MHz, 55>61 C"
