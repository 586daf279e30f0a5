"""Writes bundles of candidates for a device that cannot be reached, and reads what came back from it. Start at
`write_bundle` and `read_results`; board_agent/bundle.py measures in between.

Operands are made here as for any measurement, by an executor that only keeps what a device would be given. Results are
checked here, by an executor that only reads what the device computed.
"""

from __future__ import annotations

import hashlib
import json
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from tvm.target import Target

import board_agent
from board_agent import bundle as agent
from board_agent import journal
from board_agent.disk import whole_file
from board_agent.parsing import parse_json
from templates.template import template_named, tolerance_with
from tuner.devices import Device, flush_every
from tuner.devices.board import name_on_board, on_board
from tuner.errors import BadInput, last_line
from tuner.measure.codegen.toolchain import preflight_data, preflight_result
from tuner.measure.runner import Candidate, MeasureOptions
from tuner.measure.targets.drift import Drift, Interval
from tuner.measure.targets.kinds import NORMAL
from tuner.measure.targets.operand import Operand
from tuner.measure.targets.operands import AnchorOperands, WorkloadOperands, operands_of, unwritten, verdict
from tuner.versions import versions
from tuning_db.record import THROTTLED, Config, DeviceKey, Failure, FailureKind, Trial, Workload, with_conditions

_MAIN = "from board_agent.bundle import run\nrun()\n"


@dataclass(eq=False)
class _Written:
    """A tensor that is written into a bundle."""

    array: np.ndarray
    cold: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def dtype(self) -> str:
        return str(self.array.dtype)

    @property
    def nbytes(self) -> int:
        return self.array.nbytes

    def next(self) -> Any:
        """Return this object: the device makes the copies."""
        return self


class _Paper:
    """An executor on which nothing runs: its tensors hold what they were given, or what was computed elsewhere."""

    throttled = False

    def operand(self, array: np.ndarray, *, written: bool = False) -> Operand:
        return Operand(_Written(array))

    def array(self, tensor: _Written) -> np.ndarray:
        return tensor.array

    def cold(self, packed: np.ndarray, cold_bytes: int) -> _Written:
        return _Written(packed, cold_bytes)


class _Workloads:
    """Makes the operands of one workload after another, and the call for a config."""

    def __init__(self, target: Target, seed: int, cold_bytes: int) -> None:
        self._target, self._seed, self._cold_bytes = target, seed, cold_bytes
        self._paper: Any = _Paper()
        self._last: tuple[Workload, WorkloadOperands] | None = None

    def call(self, candidate: Candidate) -> Any:
        if self._last is None or self._last[0] != candidate.workload:
            on_cpu = self._target.kind.name == "llvm"  # whether a GPU keeps denormal numbers is not known
            made = operands_of(candidate.workload, self._target, self._paper, self._seed, denormals=on_cpu)
            self._last = candidate.workload, made
        operands = self._last[1]

        def cold(template: Any) -> Any:
            assert isinstance(operands, AnchorOperands)
            return self._paper.cold(operands.packed_weight(template, candidate.config), self._cold_bytes)

        return operands.call(candidate.config, cold)


class _Blobs:
    """Writes files into an archive, each of them once, named by its digest."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive, self._there = archive, set[str]()

    def add(self, data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        if digest not in self._there:
            self._there.add(digest)
            self._archive.writestr(agent.BLOBS + digest, data)
        return digest

    def tensor(self, tensor: _Written) -> dict[str, Any]:
        given: dict[str, Any] = {"shape": tensor.shape, "dtype": tensor.dtype}
        if tensor.cold:
            given["cold"] = tensor.cold
        return (
            {**given, "blob": self.add(np.ascontiguousarray(tensor.array).tobytes())} if tensor.array.any() else given
        )


def write_bundle(
    path: Path,
    device: Device,
    built: Sequence[tuple[Candidate, Path]],
    *,
    preflight: Path,
    options: MeasureOptions,
    clock: Callable[[], float] = time.time,
) -> None:
    """Write everything that measuring some built candidates needs into one file that Python 3.8 runs. `preflight` is
    the built kernel that is known to be good. Raises OSError if the file cannot be written, and then leaves none."""
    workloads = _Workloads(device.target, options.seed, options.cold_bytes or 2 * device.cache_bytes)
    with whole_file(str(path)) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        blobs = _Blobs(archive)
        candidates = [_described(c, library, workloads, blobs) for c, library in built]
        manifest = {
            "format": agent.FORMAT,
            "made": clock(),
            "name": hashlib.sha256(json.dumps(candidates, sort_keys=True).encode()).hexdigest()[:16],
            "settings": {
                "device": device.kind.spec_there(device.name),
                "form": device.kind.form(device.name),
                "flush_every": flush_every(device.key.family),
                "threads": device.threads,
                "memory_bytes": options.memory_bytes or 1 << 30,
            },
            "seconds": options.run_seconds,
            "seed": options.seed,
            "target": str(device.target),
            "device": device.key.as_dict(),
            "versions": versions(),
            "repetition": asdict(options.repetition),
            "preflight": _preflight(preflight, device.threads, blobs),
            "candidates": candidates,
        }
        archive.writestr(agent.MANIFEST, json.dumps(manifest))
        archive.writestr("__main__.py", _MAIN)
        for file in sorted(Path(board_agent.__file__).parent.glob("*.py")):
            archive.write(file, f"board_agent/{file.name}")


def _preflight(library: Path, threads: int, blobs: _Blobs) -> dict[str, Any]:
    data = preflight_data(threads)
    arguments = [blobs.tensor(_Written(array)) for array in (data, np.zeros_like(data))]
    return {
        "library": blobs.add(library.read_bytes()),
        "calls": [arguments],
        "outputs": [1],
        "fill": [0.0],
        "expected": blobs.add(preflight_result(data).tobytes()),
    }


def _described(candidate: Candidate, library: Path, workloads: _Workloads, blobs: _Blobs) -> dict[str, Any]:
    call = workloads.call(candidate)
    arguments = list(call.arguments())
    calls = [arguments, *(check.arguments() for check in call.checks[1:])]
    template = template_named(candidate.config.template)
    return {
        "name": f"{candidate.workload.key}/{candidate.config.key}",
        "workload": candidate.workload.as_dict(),
        "config": candidate.config.as_dict(),
        "version": template.version,
        "library": blobs.add(library.read_bytes()),
        "calls": [[blobs.tensor(tensor) for tensor in arguments] for arguments in calls],
        "outputs": [next(i for i, t in enumerate(arguments) if t is out) for out in call.outputs],
        "fill": [unwritten(out.dtype) for out in call.outputs],
        "before": template.first_calls - 1,
    }


@dataclass(frozen=True)
class Results:
    """The contents that a bundle's results have. `trials` are as if they had been measured from here.

    `remark` is a line on the
    device's speed, where it is known."""

    trials: tuple[Trial, ...]
    remark: str | None


def read_results(bundle: Path, results: Path) -> Results:
    """Check a bundle's results and return their trials. Those that were measured while the device did not keep its
    speed are marked as throttled.

    Raises BadInput for files that are no bundle and results, or do not belong together, and for results of another kind
    of device.
    """
    try:
        return _read_results(bundle, results)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        problem = f"{type(error).__name__}: {last_line(error)}"
        raise BadInput(f"{bundle} or {results}: damaged, or not what edgetune wrote ({problem})") from error


def _read_results(bundle: Path, results: Path) -> Results:
    manifest, lines, outputs, key = _opened(bundle, results)
    workloads = _Workloads(Target(manifest["target"]), int(manifest["seed"]), 0)
    candidates = {c["name"]: c for c in manifest["candidates"]}
    drift = Drift(key.model, lambda _: None)
    found: list[tuple[Trial, Interval]] = []
    for line in lines:
        if "reference" in line:
            drift.add(float(line["reference"]))
        elif "candidate" in line:
            said = candidates.get(line["candidate"])
            if said is None:
                raise BadInput(f"{results}: {line['candidate'][:60]!r} is not in {bundle}")
            try:
                found.append(
                    (_trial(line, said, manifest, key=key, workloads=workloads, outputs=outputs), drift.interval)
                )
            except (KeyError, ValueError) as error:
                raise BadInput(f"{results}: {line['candidate'][:60]!r}: not a result: {error}") from error
    return Results(tuple(_marked(trial, interval) for trial, interval in found), drift.summary)


def _trial(
    line: Mapping[str, Any],
    said: Mapping[str, Any],
    manifest: Mapping[str, Any],
    *,
    key: DeviceKey,
    workloads: _Workloads,
    outputs: Mapping[str, bytes],
) -> Trial:
    candidate = Candidate(Workload.from_dict(said["workload"]), Config.from_dict(said["config"]))
    times, failure, error = _judged(line, workloads.call(candidate), candidate, outputs)
    told = (str(line["throttled"]), str(line["condition"])) if times else ("", "")
    return Trial(
        candidate.workload,
        key,
        candidate.config,
        int(said["version"]),
        times=times,
        failure=failure,
        error=error,
        versions=with_conditions(manifest["versions"], *told),
        # A device without a clock of its own believes that it is 1970, but later trials have to count as later.
        created=datetime.fromtimestamp(max(float(line["at"]), float(manifest["made"])), UTC),
    )


def _marked(trial: Trial, interval: Interval) -> Trial:
    if not trial.ok or trial.throttled or not interval.is_disturbed:
        return trial
    return replace(trial, versions={**trial.versions, THROTTLED: "drift"})


def _judged(
    line: Mapping[str, Any], call: Any, candidate: Candidate, outputs: Mapping[str, bytes]
) -> tuple[tuple[float, ...], Failure | None, float | None]:
    if "failed" in line:
        kinds = {
            "late": FailureKind.RUN_TIMEOUT,
            "not_compiled": FailureKind.COMPILE,
            "lost": FailureKind.DEVICE_LOST,
            "damaged": FailureKind.WRONG_ANSWER,
        }
        kind = next((kind for key, kind in kinds.items() if key in line["failed"]), FailureKind.RUN)
        said = next(str(value) for value in line["failed"].values())
        return (), Failure(kind, said), None
    error, dtype = 0.0, candidate.workload.dtype
    allowed = tolerance_with(candidate.config.template, dtype)
    calls = [call.checks[0], *call.checks]  # the first check's call, the timed calls, the other checks' calls
    written = [(check, out) for check in calls for out in call.outputs]
    for place, ((check, out), digest) in enumerate(zip(written, line["outputs"], strict=True), 1):
        out.array = np.frombuffer(outputs[digest], out.dtype).reshape(out.shape)
        if place % len(call.outputs):
            continue  # not all outputs of this call are known yet
        found = float(check.error())
        if (failure := verdict(found, dtype, allowed, check.kind)) is not None:
            return (), failure, found if np.isfinite(found) else None
        error = max(error, found) if check.kind == NORMAL else error
    return tuple(float(t) for t in line["times"]), None, error


def _opened(bundle: Path, results: Path) -> tuple[dict[str, Any], list[dict[str, Any]], dict[str, bytes], DeviceKey]:
    try:
        with zipfile.ZipFile(bundle) as archive:
            manifest = parse_json(archive.read(agent.MANIFEST))
        with zipfile.ZipFile(results) as archive:
            name = archive.read(journal.BUNDLE).decode()
            facts = parse_json(archive.read(journal.FACTS))
            lines = [parse_json(line) for line in archive.read(journal.LINES).splitlines()]
            outputs = {
                path.removeprefix(journal.OUTPUTS): archive.read(path)
                for path in archive.namelist()
                if path.startswith(journal.OUTPUTS)
            }
    except FileNotFoundError as error:
        raise BadInput(f"{error.filename}: No such file or directory") from error
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise BadInput(f"{bundle} or {results}: not a bundle and its results: {error}") from error
    if manifest["format"] != agent.FORMAT:
        raise BadInput(f"{bundle}: made by another version of edgetune: import it with that, or make another")
    if name != manifest["name"]:
        raise BadInput(f"{results}: these are the results of another bundle than {bundle}")
    wanted = DeviceKey.from_dict(manifest["device"])
    described = facts["described"]
    spec, threads = str(manifest["settings"]["device"]), int(manifest["settings"]["threads"])
    found = on_board(name_on_board("bundle", spec)).key(facts, described, Target(manifest["target"]), threads)
    if found.family.removesuffix("-emulated") != wanted.family.removesuffix("-emulated"):
        raise BadInput(f"{results}: measured on {found.family} {found.model}, not on {wanted.family}")
    return manifest, lines, outputs, found
