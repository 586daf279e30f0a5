"""Chooses in which precision a quantised network's operators are computed, as `--precision` asks. Start at
`with_precisions`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from tuner.cli.common import DEFAULT_DB, Output
from tuner.cli.completion import one_of
from tuner.cli.network import AS_FILE, Network
from tuner.errors import BadInput

if TYPE_CHECKING:
    from tuner.devices import Device
    from tuner.graph import FusedGraph
    from tuner.precision import Precision
    from tuning_db.store import Store

MIXED = "mixed"

PrecisionOption = Annotated[
    str,
    typer.Option(
        "--precision",
        metavar="P",
        help="Of a quantised model's operators: as-file, in integers where the file says so; mixed, in float32 instead "
        "where that takes less time, conversions included; a module's folder, as it was built.",
        autocompletion=one_of((AS_FILE, MIXED)),
    ),
]
TunedPrecisionOption = Annotated[
    str,
    typer.Option(
        "--precision",
        metavar="P",
        help="as-file, or mixed: also tune a quantised model's operators in float32, so that `tune build --precision "
        "mixed` can choose.",
        autocompletion=one_of((AS_FILE, MIXED)),
    ),
]


def precision_asked(text: str, *, built: bool = True) -> str:
    """Return the value of --precision, which may be a module's folder if `built`. Raises BadInput for anything else."""
    if text in (AS_FILE, MIXED) or (built and Path(text).is_dir()):
        return text
    known = f"{AS_FILE} or {MIXED}" if not built else f"{AS_FILE}, {MIXED} or the folder of a module"
    raise BadInput(f"--precision {text}: is not known; give {known}")


def with_precisions(
    graph: FusedGraph, network: Network, devices: Sequence[Device], *, db: str, exact: bool, out: Output
) -> FusedGraph:
    """Return a network that was loaded for some devices with the precisions that it asks for, and say what computes it.

    Raises BadInput for the module of another network, and DatabaseError for a database that cannot be read.
    """
    from tuner.graph import precisions
    from tuner.placement.precisions import choose_precisions

    if network.precision == AS_FILE:
        return graph
    with _store(db) as store:
        if network.precision != MIXED:
            found = given_by(Path(network.precision), graph)
        elif len(devices) == 1:
            found = choose_precisions(graph, devices[0], store, exact)
        else:
            found = ()
    mixed = with_given(graph, found)
    out.remark(precisions(mixed))
    return mixed


@contextmanager
def _store(db: str) -> Iterator[Store | None]:
    """Open the database to read from. It is None where nobody has tuned yet and none is named."""
    from tuning_db.store import open_db

    if db == DEFAULT_DB and not Path(db).exists():
        yield None
        return
    with open_db(db, create=False, read_only=True) as store:
        yield store


def given_by(module: Path, graph: FusedGraph) -> tuple[Precision, ...]:
    """Return the precisions that a module was built with. Raises BadInput if it is the module of another network."""
    from tuner.module import read_manifest

    manifest = read_manifest(module, check_files=False)
    if manifest.model["sha256"] != graph.model.sha256:
        raise BadInput(f"--precision {module}: was built from another model, or for other sizes of its free axes")
    return tuple(replace(found, source="given") for found in manifest.precisions)


def with_given(graph: FusedGraph, found: Sequence[Precision]) -> FusedGraph:
    """Return a network whose operators have the precisions that were found."""
    from tuner.graph import with_floats

    floats = {precision.node for precision in found if precision.in_float}
    return replace(with_floats(graph, lambda step: step.node in floats), precisions=tuple(found))


def time_conversions(device: str, threads: int | None, db: str, out: Output) -> None:
    """Measure what conversions between bytes and float32 take on a device that multiplies integers, and keep it in the
    database. On devices that are elsewhere nothing is measured."""
    from tuner.devices import open_device
    from tuner.graph import multiplies_integers
    from tuner.placement.conversions import measure_conversions
    from tuner.placement.step_costs import Costs
    from tuning_db.store import open_db

    opened = open_device(device, threads)
    if opened.kind.is_remote or not multiplies_integers([opened.target]):
        return
    with open_db(db) as store:
        costs = Costs([opened], store)
        measure_conversions(costs)
        if costs.measured:
            out.remark(f"measured {costs.measured} conversions between bytes and float32")


def precision_table(found: Iterable[Precision]) -> Table:
    """Return a table that says for each operator which precision it got, and why."""
    from tuner.report.text import clipped, microseconds

    table = Table(box=None, title="Precisions", title_justify="left")
    for title in ("operator", "computed in", "us int8", "us float32", "us conversions", "known from", "why"):
        right = title.startswith("us")
        table.add_column(title, justify="right" if right else "left", no_wrap=right, overflow="fold")
    for precision in found:
        times = precision.integers, precision.floats, precision.conversions
        table.add_row(
            clipped(precision.node),
            "float32" if precision.in_float else "int8",
            *map(microseconds, times),
            precision.source,
            precision.why,
        )
    return table
