"""This module reads the condition of the board and finds out whether its system slowed it down.

Start at `condition`, which reads clocks, temperatures and memory, and at `why_throttled`. A low clock alone proves
nothing: an idle core is slow too. A steady clock proves nothing either: a core may be slowed down all the time. So the
functions look for something that keeps a clock low. They take the roots of the file systems that they read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, Sequence

from board_agent.facts import PROCFS
from board_agent.topology import SYSFS

_CPUS = "devices/system/cpu"
# Words in the types of cooling devices that slow a processor down. Fans and screens are cooling devices too, but do not
# matter. Those of Jetsons are named after the GPU's generation.
_CPU_COOLERS = ("cpu", "processor", "powerclamp")
_GPUS = ("gpu", "mali", "ga10b", "gv11b", "gp10b", "gm20b")
_GPU_COOLERS = (*_GPUS, "devfreq")
_GPU_REASONS = (  # files of Intel's drivers i915 and xe; they hold 1 while the GPU is throttled for this reason
    "card[0-9]*/gt/gt*/throttle_reason_thermal",
    "card[0-9]*/gt/gt*/throttle_reason_prochot",
    "card[0-9]*/device/tile*/gt*/freq*/throttle/reason_thermal",
    "card[0-9]*/device/tile*/gt*/freq*/throttle/reason_prochot",
)
_PI = "devices/platform/soc*/soc*firmware/get_throttled"  # a Raspberry Pi's firmware throttles by itself
_PI_NOW, _PI_EVER = 0xF, 0xF0000
_TRIES = 3  # attempts of a measurement or comparison in which the device slows down
_HELD_SHARE = 0.9  # of its limit, which a clock that is meant to stay at the limit reaches at least
_TURBO = ("intel", "amd", "acpi", "pcc")  # drivers whose limit is reached only while a single core is busy


def condition(sysfs: Path = SYSFS, procfs: Path = PROCFS) -> dict[str, Any]:
    """Return the condition of the board now. An entry is missing where the system does not report it.

    "mhz" and "gpu_mhz" are clocks of cores and GPUs as the kernel reports them. "limits" and "gpu_limits" hold for each
    the highest clock that is allowed now, and the highest that is possible. "held" lists the cores whose clock should
    stay at its limit. "degrees" holds Celsius by sensor, and "hot" is True if a sensor is at a temperature where the
    system begins to slow down. "cooling" holds the states of the cooling devices that slow down cores or GPUs, see
    `_cooling`. "throttled" counts how often cores were throttled since boot. "firmware" holds the flags of a Raspberry
    Pi. "free_bytes" is always present.
    """
    cores = sysfs / _CPUS
    counts = [value for _, value in _numbers(cores, "cpu[0-9]*/thermal_throttle/*_throttle_count")]
    found: dict[str, Any] = {
        "mhz": {p.parent.parent.name: v / 1000 for p, v in _numbers(cores, "cpu[0-9]*/cpufreq/scaling_cur_freq")},
        "limits": _limits(cores),
        "held": [p.parent.name for p in sorted(cores.glob("cpu[0-9]*/cpufreq")) if _is_held(p)],
        "degrees": {p.parent.name: v / 1000 for p, v in _numbers(sysfs / "class/thermal", "thermal_zone*/temp")},
        "hot": any(_is_hot(zone) for zone in sysfs.glob("class/thermal/thermal_zone*")),
        "cooling": _cooling(sysfs),
        "throttled": sum(counts) if counts else None,
        "firmware": next((int(_text(p) or "0", 16) for p in sorted(sysfs.glob(_PI))), None),
        **_gpus(sysfs),
    }
    told = {name: value for name, value in found.items() if value not in ({}, [], None, False)}
    return {"free_bytes": _free(procfs), **told}


def why_throttled(before: dict[str, Any], after: dict[str, Any], cores: Sequence[int] | None) -> str:
    """Say why the given cores, or the GPU (None), were slowed down between two conditions.

    Return "" if the system reports no reason.
    """
    grew = after.get("throttled", 0) - before.get("throttled", 0)
    if grew > 0:
        return f"cores were throttled {grew} times"
    both = (before, after)
    for name, (state, kind, whom) in [item for c in both for item in c.get("cooling", {}).items()]:
        if state > 0 and kind == ("gpu" if cores is None else "cpu") and (not whom or set(whom) & set(cores or whom)):
            return f"{name} is at {state}"
    earlier, later = (c.get("firmware", 0) for c in both)
    if (earlier | later) & _PI_NOW or later & ~earlier & _PI_EVER:
        return f"the firmware's flags are {later:#x}"
    return _why_limited(before, after, cores) or _why_below(after, cores)


def steady_answer(ask: Callable[[], dict[str, Any]], cores: Sequence[int] | None) -> tuple[dict[str, Any], str, str]:
    """Ask for a measurement, and ask again a few times if these cores, or the GPU (None), slowed down meanwhile.

    An answer has the conditions before and after the measurement. Return the last answer, the reason of its slowdown
    ("" if there was none), and its conditions in short.
    """
    for _ in range(_TRIES):
        answer = ask()
        before, after = answer["conditions"]
        why = why_throttled(before, after, cores)
        if not why:
            break
    return answer, why, in_short(before, after, cores)


def in_short(before: dict[str, Any], after: dict[str, Any], cores: Sequence[int] | None) -> str:
    """Summarise two conditions, such as "1416 MHz, 51>58 C".

    The text has the lowest clock of these cores, or of the GPUs (None), and the highest temperature. A second value is
    given where it changed. The text is empty where the system reports neither.
    """
    parts = []
    for unit, name in (("MHz", "gpu_mhz" if cores is None else "mhz"), ("C", "degrees")):
        values = []
        for told in (before.get(name, {}), after.get(name, {})):
            if unit == "MHz":
                mhz = [v for k, v in told.items() if cores is None or k in _names(cores)]
                values += [f"{min(mhz):.0f}"] if mhz else []
            else:
                values += [f"{max(told.values()):.0f}"] if told else []
        if values:
            parts.append(f"{'>'.join(dict.fromkeys(values))} {unit}")
    return ", ".join(parts)


def _why_limited(before: dict[str, Any], after: dict[str, Any], cores: Sequence[int] | None) -> str:
    """Say which limit on a clock slowed down these cores or the GPU (None), or return "".

    A user may set a low limit to keep the clock constant, and that does not count. A limit of the system changes during
    the measurement, or comes with heat.
    """
    of = "gpu_limits" if cores is None else "limits"
    for name, (allowed, most) in after.get(of, {}).items():
        if cores is not None and name not in _names(cores):
            continue
        earlier, _ = before.get(of, {}).get(name, (allowed, most))
        if earlier != allowed:
            return f"the limit of {name} went from {earlier:g} to {allowed:g} MHz"
        if allowed < most and (before.get("hot") or after.get("hot")):
            return f"{name} is hot and limited to {allowed:g} of {most:g} MHz"
    return ""


def _why_below(after: dict[str, Any], cores: Sequence[int] | None) -> str:
    for name in set(_names(cores or ())).intersection(
        after.get("held", ()), after.get("mhz", {}), after.get("limits", {})
    ):
        mhz, (allowed, _) = after["mhz"][name], after["limits"][name]
        if mhz < _HELD_SHARE * allowed:
            return f"{name} runs at {mhz:g} of {allowed:g} MHz"
    return ""


def _names(cores: Sequence[int]) -> list[str]:
    return [f"cpu{core}" for core in cores]


def _limits(cores: Path) -> dict[str, list[float]]:
    allowed = {p.parent: v for p, v in _numbers(cores, "cpu[0-9]*/cpufreq/scaling_max_freq")}
    most = {p.parent: v for p, v in _numbers(cores, "cpu[0-9]*/cpufreq/cpuinfo_max_freq")}
    return {p.parent.name: [v / 1000, most[p] / 1000] for p, v in allowed.items() if p in most}


def _is_held(cpufreq: Path) -> bool:
    driver = _text(cpufreq / "scaling_driver")
    return _text(cpufreq / "scaling_governor") == "performance" and not driver.startswith(_TURBO)


def _is_hot(zone: Path) -> bool:
    """Tell whether a zone has reached a trip point at which the system slows something down."""
    now = [v for _, v in _numbers(zone, "temp")]
    passive = [p for p in zone.glob("trip_point_*_type") if _text(p) == "passive"]
    trips = [v for p in passive for _, v in _numbers(zone, p.name.replace("_type", "_temp"))]
    return any(0 < trip <= temperature for trip in trips for temperature in now)


def _cooling(sysfs: Path) -> dict[str, tuple[int, str, list[int]]]:
    """Return the cooling devices of cores and GPUs by name.

    Each has its state, "cpu" or "gpu", and the cores that it slows down (empty where the system does not say).
    """
    found: dict[str, tuple[int, str, list[int]]] = {}
    for path, state in _numbers(sysfs / "class/thermal", "cooling_device*/cur_state"):
        name = _text(path.parent / "type")
        if any(word in name.lower() for word in _CPU_COOLERS):
            one = name.rpartition("cpufreq-")[2]  # the first of the cores that share the clock
            found[f"{name} ({path.parent.name})"] = state, "cpu", _related(sysfs, one) if one.startswith("cpu") else []
        elif any(word in name.lower() for word in _GPU_COOLERS):
            found[f"{name} ({path.parent.name})"] = state, "gpu", []
    for pattern in _GPU_REASONS:
        for path, state in _numbers(sysfs / "class/drm", pattern):
            found[str(path.relative_to(sysfs / "class/drm"))] = state, "gpu", []
    return found


def _related(sysfs: Path, core: str) -> list[int]:
    return [int(n) for n in _text(sysfs / _CPUS / core / "cpufreq/related_cpus").split()]


def _gpus(sysfs: Path) -> dict[str, dict[str, Any]]:
    mhz: dict[str, Any] = {}
    limits: dict[str, Any] = {}
    for device in sorted(sysfs.glob("class/devfreq/*")):
        if not any(word in device.name for word in _GPUS):
            continue  # memory and buses have clocks there too
        for _, hertz in _numbers(device, "cur_freq"):
            mhz[device.name] = hertz / 1e6
        steps = [int(n) for n in _text(device / "available_frequencies").split()]
        for _, hertz in _numbers(device, "max_freq"):
            limits[device.name] = [hertz / 1e6, max([hertz, *steps]) / 1e6]
    return {"gpu_mhz": mhz, "gpu_limits": limits}


def _numbers(folder: Path, pattern: str) -> list[tuple[Path, int]]:
    found = [(path, _text(path)) for path in sorted(folder.glob(pattern))]
    return [(path, int(text)) for path, text in found if text.lstrip("-").isdigit()]


def _text(path: Path) -> str:
    """Read a file, and return "" if it does not exist or a sensor is asleep."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _free(procfs: Path) -> int:
    for line in (procfs / "meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return 0
