"""`tune db verify --measure N` measures some of a device's stored bests again, and reports what has changed."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from tuner.cli.common import INTERRUPTED, Output, import_plugins, templates_asked
from tuner.errors import BadInput, NothingMeasured, VerificationFailed

if TYPE_CHECKING:
    from tuner.devices import Device
    from tuner.session.remeasure import Remeasured
    from tuning_db.store import Store


@dataclass(frozen=True)
class Request:
    """The options, as given, of a verification that measures.

    `count` is how many of the best configs it measures. `factor` is how many times slower or faster than the stored
    time a new time may be before it is reported.
    """

    count: int
    device: str
    threads: int | None
    seed: int
    factor: float
    plugins: Sequence[str]
    vendors: str


def verify_by_measuring(store: Store, request: Request, out: Output) -> dict[str, Any]:
    """Measure, report every record once it is measured, show a summary and return the result for a program.

    Raises BadInput if the database has no best config for the device. The caller passes the result to `exit_of`.
    """
    from tuner.devices import open_device
    from tuner.measure import MeasureOptions, check_toolchain, open_runner
    from tuner.session.remeasure import current_bests, remeasure, sample

    device = open_device(request.device, request.threads)
    plugins = import_plugins(templates_asked(request.plugins, request.vendors))
    check_toolchain(device.target)
    bests = current_bests(store, device)
    if not bests:
        raise BadInput(f"{store.name}: no best of device {device.name} with {device.threads} threads; {_known(store)}")
    chosen = sample(bests, request.count, request.seed)
    done: list[Remeasured] = []
    interrupted = False
    with open_runner(device, MeasureOptions(plugins=plugins)) as runner:
        try:
            for record in remeasure(chosen, store, runner, request.seed):
                done.append(record)
                out.remark(f"{len(done)} of {len(chosen)}: {_line(record, request.factor)}")
        except KeyboardInterrupt:
            interrupted = True
    result = _summary(done, len(bests), device, request=request, interrupted=interrupted)
    out.show(_text(result))
    return result


def exit_of(result: dict[str, Any]) -> None:
    """Raise typer.Exit if the command has to end with an exit status other than 0.

    That is VerificationFailed's if a kernel is wrong, else 130 after an interrupt, else NothingMeasured's if no time
    was measured.
    """
    if result["wrong"]:
        raise typer.Exit(VerificationFailed.exit_status)
    if result["interrupted"]:
        raise typer.Exit(INTERRUPTED)
    if result["median_ratio"] is None:
        raise typer.Exit(NothingMeasured.exit_status)


def _known(store: Store) -> str:
    devices = [f"{d.kind} {d.model} ({d.attrs.get('threads', '-')} threads)" for d in store.devices()]
    return f"it has {', '.join(devices)}: choose with --device and --threads" if devices else "it is empty"


def _line(record: Remeasured, factor: float) -> str:
    from tuner.report.text import describe, microseconds

    workload, failure = record.stored.workload, record.now.failure
    name = f"{workload.op} {describe(workload)} by {record.stored.config.template}"
    if failure is not None:
        return f"{name}: {'WRONG' if record.wrong else 'not measured'}: {failure.kind}: {failure.message}"
    times = f"{microseconds(record.stored.seconds)} us then, {microseconds(record.now.seconds)} us now"
    flag = "; WRONG" if record.wrong else f"; differs by more than {factor:g}" if record.drifted(factor) else ""
    return f"{name}: {times}, {record.ratio:.2f} times; error {record.now.error:.1e}{flag}"


def _summary(
    done: Sequence[Remeasured], bests: int, device: Device, *, request: Request, interrupted: bool
) -> dict[str, Any]:
    ratios = [r.ratio for r in done if r.ratio is not None]
    return {
        "device": device.key.as_dict(),
        "bests": bests,
        "measured": len(done),
        "wrong": sum(r.wrong for r in done),
        "factor": request.factor,
        "drifted": sum(r.drifted(request.factor) for r in done),
        "median_ratio": statistics.median(ratios) if ratios else None,
        "slowest_ratio": max(ratios, default=None),
        "fastest_ratio": min(ratios, default=None),
        "interrupted": interrupted,
        "records": [{**r.as_dict(), "drifted": r.drifted(request.factor)} for r in done],
    }


def _text(result: dict[str, Any]) -> str:
    counts = f"{result['measured']} of {result['bests']} bests measured again, {result['wrong']} wrong"
    if result["median_ratio"] is None:
        return f"{counts}; no time was measured"
    return (
        f"{counts}, {result['drifted']} differ by more than {result['factor']:g}; time now to time then: median "
        f"{result['median_ratio']:.2f}, {result['fastest_ratio']:.2f} to {result['slowest_ratio']:.2f}"
    )
