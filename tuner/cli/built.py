"""Says what a build is asked for, opens its database, and shows what was built. Start at `BuildRequest`."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from tuner.cli.checks import Checks
from tuner.cli.common import DEFAULT_DB, Objective, Output
from tuner.cli.network import Network
from tuner.cli.placing import Placer

if TYPE_CHECKING:
    from tuner.module import Manifest
    from tuner.stages import StageOptions
    from tuning_db.store import Store


@dataclass(frozen=True)
class BuildRequest:
    """Says what is built: `network` as a module in the folder `output`, from the database `db`.

    - `device` is one device, or a GPU and the CPU with a comma between them. The CPU then computes what the GPU cannot,
      and all operators that are in `unwanted`.
    - `plan` is a file that says devices, layouts and kernels instead.
    - `memory` is the option --memory, in MiB.
    - `staging` has the options of the search for stages; None means that there are no stages.
    - `placer` decides the device of each step; None means the fallback.
    - `checks` says how the module is verified, and on which inputs besides random ones.
    - `portable` says that the module is to be exported.
    - `objective` says by what kernels are chosen.
    - `max_weights` is what its weights may take, in bytes, and `max_memory` what an inference may take at its peak,
      weights included; None is no limit.
    """

    network: Network
    output: Path
    device: str
    threads: int | None
    db: str
    exact: bool = False
    unwanted: tuple[str, ...] = ()
    plan: Path | None = None
    memory: int | None = None
    staging: StageOptions | None = None
    placer: Placer | None = None
    checks: Checks = field(default_factory=Checks)
    portable: bool = False
    objective: Objective = Objective.LATENCY
    max_weights: int | None = None
    max_memory: int | None = None


@contextmanager
def store_of(db: str, out: Output, *, read_only: bool) -> Iterator[Store]:
    """Open the database that a build reads. Where nobody has tuned yet and none is named, there is an empty one during
    the block: the configs are those that come with edgetune, and first ones.

    Raises DatabaseError for a database that is named and is not there.
    """
    from tuning_db.store import open_db

    if not read_only or db != DEFAULT_DB or Path(db).exists():
        with open_db(db, create=False, read_only=read_only) as store:
            yield store
        return
    out.remark(f"there is no {db} here: what comes with edgetune is used, which tuning would improve")
    with tempfile.TemporaryDirectory() as folder, open_db(Path(folder) / db) as store:
        yield store


def described(asked: BuildRequest, manifest: Manifest) -> dict[str, Any]:
    """Return what --json prints of every build."""
    return {
        "output": str(asked.output),
        "model": str(asked.network.file),
        "threads": manifest.threads,
        "devices": [processor.name for processor in manifest.devices],
        "dtype": manifest.dtype,
        "relative_error": manifest.errors,
        "untuned": _untuned(manifest),
        "sizes": manifest.sizes and manifest.sizes.figures(),
        "operators": [operator.as_dict() for operator in manifest.operators],
    }


def _untuned(manifest: Manifest) -> list[str]:
    return [operator.node for operator in manifest.operators if operator.source in ("default", "none")]


def show(manifest: Manifest, out: Output) -> None:
    """Show the choices, how many operators were not tuned for this device, the module's sizes, and the error of half
    precision."""
    from tuner.report.tables import sizes_text

    untuned = _untuned(manifest)
    out.show(choice_table(manifest))
    if manifest.vendors:
        out.show("kernels: " + shares(manifest))
    if untuned:
        out.remark(f"{len(untuned)} of {len(manifest.operators)} operators have not been tuned for this device")
    if shipped := sum(operator.source.startswith("shipped") for operator in manifest.operators):
        out.remark(f"{shipped} of {len(manifest.operators)} use configs that come with edgetune: tune to beat them")
    if manifest.sizes is not None:
        out.show(sizes_text(manifest.sizes))
    if manifest.dtype != "float32":
        out.show(f"half precision: largest error {worst(manifest):.1e} relative to the float32 model's largest output")


def shares(manifest: Manifest) -> str:
    """Return how many operators run kernels of each library, ours first, such as "12 ours, 3 onednn"."""
    from tuner.vendors import vendor_of

    won = Counter(vendor_of(o.config.template) or "" for o in manifest.operators if o.config is not None)
    return ", ".join(f"{count} {name or 'ours'}" for name, count in sorted(won.items()))


def worst(manifest: Manifest) -> float:
    """Return the largest error of all outputs."""
    return max(manifest.errors.values(), default=0.0)


def choice_table(manifest: Manifest) -> Table:
    """Return a table with one row per operator: its kernel, where that is known from, and the kernel's own error."""
    from tuner.report.tables import clipped, describe, microseconds, short_config

    table = Table(box=None, title="Operators", title_justify="left")
    for title in ("operator", "computes", "template", "known from", "us", "error"):
        right = title in ("us", "error")
        table.add_column(title, justify="right" if right else "left", no_wrap=right, overflow="fold")
    for operator in manifest.operators:
        table.add_row(
            clipped(operator.node),
            f"{operator.workload.op} {describe(operator.workload)}",
            short_config(operator.config),
            operator.source,
            microseconds(operator.seconds),
            "-" if operator.error is None else f"{operator.error:.1e}",
        )
    return table
