"""`tune doctor` tells what works here, what is missing and how to get it. Start at `examine`.

The exit status is 2 if something needed is missing.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from typing import Literal

import typer
from rich.table import Table
from rich.text import Text

from tuner.activity import activity
from tuner.cli.common import JsonOption, Output
from tuner.errors import BadInput, TuneError

GIGABYTE = 1 << 30
ENOUGH_MEMORY = 2 * GIGABYTE
ENOUGH_DISK = 1 * GIGABYTE

State = Literal["ok", "optional", "warning", "missing"]
_STYLES = {"ok": "green", "optional": "dim", "warning": "yellow", "missing": "bold red"}


@dataclass(frozen=True)
class Finding:
    """A finding that says what was examined, what was found, and what to do about it.

    `remedy` is empty if there is nothing to do.
    """

    what: str
    state: State
    found: str
    remedy: str = ""


EXAMPLES = ("tune doctor", "tune doctor --json")


def command(as_json: JsonOption = False) -> None:
    """Tell what works here, what is missing and how to get it."""
    with Output(as_json) as out:
        findings = examine()
        table = Table(box=None)
        for title in ("", "state", "found"):
            table.add_column(title, overflow="fold")
        for finding in findings:
            table.add_row(finding.what, Text(finding.state, style=_STYLES[finding.state]), finding.found)
        out.show(table)
        for finding in findings:
            if finding.remedy:  # in a line of its own, whole, to be copied
                out.show(f"{finding.what}: {finding.remedy}")
        missing = [finding.what for finding in findings if finding.state == "missing"]
        out.result({"ok": not missing, "findings": [asdict(finding) for finding in findings]})
    if missing:
        raise typer.Exit(BadInput.exit_status)


def examine() -> list[Finding]:
    """Return every finding, those about needed things first."""
    needed: list[Callable[[], Finding]] = [
        _python,
        _tvm,
        _linker,
        _threads,
        _cpu,
        _pinning,
        _memory,
        _temporary_space,
        _space_here,
    ]
    with activity("examining this machine"):
        findings = [check() for check in needed]
    with activity("looking for OpenCL drivers, and running a kernel on each device"):
        findings += _opencl()
    with activity("looking for compilers for other devices"):
        findings += _offline()
    findings += [_optional(*extra) for extra in _EXTRAS]
    return [replace(finding, remedy=_for_this_python(finding.remedy)) for finding in findings]


def _for_this_python(remedy: str) -> str:
    """Return a remedy whose `pip` is that of the Python that runs this, whatever stands first in PATH."""
    return remedy.replace("pip install", f"{sys.executable} -m pip install")


def _python() -> Finding:
    return Finding("python", "ok", f"{platform.python_version()} on {platform.machine()} {platform.system()}")


def _tvm() -> Finding:
    """Check that TVM has the exact versions that this package works with, that it loads, and that it has LLVM."""
    pins = {}
    for requirement in metadata.requires("edgetune") or []:
        name, _, version = requirement.partition("==")
        if name.startswith("apache-tvm"):
            pins[name] = version
    remedy = "pip install " + " ".join(f"{name}=={version}" for name, version in pins.items())
    found = {}
    for name in pins:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            return Finding("tvm", "missing", f"{name} is not installed", remedy)
    versions = ", ".join(f"{name} {version}" for name, version in found.items())
    if found != pins:
        return Finding("tvm", "missing", f"{versions}: not the versions this package works with", remedy)
    try:
        import tvm
    except Exception as error:  # a broken wheel fails in many ways; each means the same to the user
        return Finding("tvm", "missing", f"{versions}: does not load: {error}", remedy)
    if not tvm.runtime.enabled("llvm"):
        return Finding("tvm", "missing", f"{versions}: has no LLVM code generator", remedy)
    return Finding("tvm", "ok", versions)


def _linker() -> Finding:
    from tuner.measure.codegen.toolchain import check_toolchain

    try:
        return Finding("linker", "ok", check_toolchain())
    except BadInput as error:
        return Finding("linker", "missing", str(error), "apt-get install gcc (or binutils)")


def _threads() -> Finding:
    from tuner.devices.parallel import open_pool, pool_library

    library = pool_library()
    if library is None or open_pool(library) is None:
        return Finding("threads", "optional", "TVM's pool, which waits for every busy core", "apt-get install gcc")
    return Finding("threads", "ok", "a pool of our own, compiled here")


def _cpu() -> Finding:
    from tuner.devices import last_level_cache_bytes, open_device, usable_cpus

    try:
        device = open_device("cpu")
    except TuneError as error:
        return Finding("cpu", "missing", str(error), "")
    cpus = usable_cpus()
    cache = f"{last_level_cache_bytes() >> 20} MB last-level cache"
    found = f"{device.key.model} ({device.key.family}), {len(cpus)} usable physical cores, {cache}"
    load = os.getloadavg()[0]
    if load > 0.3 * len(cpus):
        return Finding("cpu", "warning", f"{found}; load {load:.1f}", "other programs disturb measurements: stop them")
    return Finding("cpu", "ok", found)


_OPENCL_REMEDY = (
    "install your GPU's OpenCL driver (Debian: intel-opencl-icd, pocl-opencl-icd with ocl-icd-libopencl1), "
    "or pip install 'edgetune[opencl]' for Intel's runtime on an x86-64 CPU"
)


def _opencl() -> list[Finding]:
    """Return one finding for each OpenCL driver that was looked for."""
    from tuner.devices import opencl

    try:
        devices, drivers = opencl.devices(), opencl.drivers()
    except TuneError as error:
        return [Finding("opencl", "optional", str(error), "apt-get install g++")]
    findings = []
    for driver in drivers:
        names = ", ".join(f"opencl:{i} {devices[i].name} ({devices[i].platform})" for i in driver.devices)
        state: State = "ok" if driver.devices else "optional"
        findings.append(Finding("opencl", state, f"{driver.path}: {names or driver.problem}"))
    if not devices:
        findings.append(Finding("opencl", "optional", "no device", _OPENCL_REMEDY))
    return findings


def _offline() -> list[Finding]:
    """Return one finding for each compiler for devices that are not here."""
    from tuner.devices.profiles import all_profiles
    from tuner.measure.offline import compiler_named

    findings = []
    for name in sorted({name for profile in all_profiles() for name in profile.compilers}):
        use = "compiles for " + ", ".join(p.name for p in all_profiles() if name in p.compilers)
        problem = ""
        for profile in all_profiles():
            try:
                if name in profile.compilers:
                    compiler_named(name, profile)
            except BadInput as error:
                problem = problem or str(error)
        if problem:
            found, _, remedy = problem.rpartition(": ")
            findings.append(Finding(name, "optional", f"{found}: {use}", remedy))
        else:
            findings.append(Finding(name, "ok", use))
    return findings


def _pinning() -> Finding:
    from tuner.devices import usable_cpus

    before = os.sched_getaffinity(0)
    try:
        for cpu in usable_cpus():
            os.sched_setaffinity(0, {cpu})
    except OSError as error:
        remedy = "allow sched_setaffinity in this container: times are unsteady without"
        return Finding("pinning", "warning", f"threads cannot be pinned: {error.strerror}", remedy)
    finally:
        os.sched_setaffinity(0, before)
    return Finding("pinning", "ok", "threads can be pinned to cores")


def _memory() -> Finding:
    import psutil

    free = psutil.virtual_memory().available
    if free < ENOUGH_MEMORY:
        return Finding("memory", "warning", f"{free / GIGABYTE:.1f} GB available", "2 GB are needed for most networks")
    return Finding("memory", "ok", f"{free / GIGABYTE:.1f} GB available")


def _temporary_space() -> Finding:
    return _space("temporary space", tempfile.gettempdir(), "set TMPDIR to a folder on another disk")


def _space_here() -> Finding:
    return _space("space here", os.getcwd(), "work in a folder on another disk")


def _space(what: str, folder: str, remedy: str) -> Finding:
    free = shutil.disk_usage(folder).free
    found = f"{free / GIGABYTE:.1f} GB free in {folder}"
    if not os.access(folder, os.W_OK):
        return Finding(what, "missing", f"{folder} cannot be written to", remedy)
    return Finding(what, "ok" if free >= ENOUGH_DISK else "warning", found, "" if free >= ENOUGH_DISK else remedy)


# Each entry has a distribution, the extra that installs it, and what it is for.
_EXTRAS = (
    ("openvino", "openvino", "a peer of `tune bench`"),
    ("opencv-python-headless", "peers", "a peer of `tune bench`"),
    ("mnn", "peers", "a peer of `tune bench`"),
    ("torch", "torch", "oneDNN's kernels as rivals (--vendor onednn), torch.export programs"),
    ("stable-baselines3", "rl", "--searcher reinforcement, --placement learned"),
    ("psycopg", "postgres", "a tuning database that a team shares"),
    ("pillow", "quantize", "images as samples of `tune quantize`"),
    ("ray", "fleet", "building on many machines (--ray)"),
)


def _optional(distribution: str, extra: str, use: str) -> Finding:
    try:
        return Finding(distribution, "ok", f"{metadata.version(distribution)}: {use}")
    except metadata.PackageNotFoundError:
        return Finding(distribution, "optional", f"not installed: {use}", f"pip install 'edgetune[{extra}]'")
