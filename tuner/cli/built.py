"""Says what a build is asked for, opens its database, and shows what was built. Start at `BuildRequest`."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from tuner.cli.checks import Checks
from tuner.cli.common import DEFAULT_DB, Objective, Output, threads_text, with_memory
from tuner.cli.network import Network, load_graph
from tuner.cli.placing import PlacedGraph, Placer, placed_by
from tuner.cli.precision import precision_table, with_given, with_precisions
from tuner.errors import BadInput

if TYPE_CHECKING:
    from tuner.devices import Device
    from tuner.graph import FusedGraph
    from tuner.graph.layout.choice import Planned
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


@dataclass(frozen=True)
class Decided:
    """A network and the devices that compute it, by `planned`. `placing` is the outcome of a placer, if there was
    one."""

    graph: FusedGraph
    devices: list[Device]
    planned: Planned
    placing: PlacedGraph | None = None

    def show(self, asked: BuildRequest, result: str, out: Output) -> None:
        """Show for which devices the module was written, and with which result."""
        names = " and ".join(
            f"{d.name} {d.key.model}" + (f", {threads_text(d.threads)}" if d.is_host else "") for d in self.devices
        )
        out.show(f"wrote {asked.output} for {names}, {result}")
        if len(self.devices) > 1 and asked.plan is None:
            steps = len(self.graph.steps)
            out.show(f"{sum(self.planned.placement)} of {steps} steps are computed by the CPU")


def decide(asked: BuildRequest, devices: Sequence[Device], out: Output) -> Decided:
    """Load the network, and let the placer or the fallback decide what each of the `devices` computes: one device, or a
    GPU and the CPU. Raises BadInput for operators that are to fall back where there is no CPU, and as these do."""
    if asked.unwanted and len(devices) < 2:
        unwanted = ",".join(asked.unwanted)
        raise BadInput(f"--fallback {unwanted}: to what? Name the CPU behind the GPU: --device opencl:0,cpu")
    limited = with_memory(devices, asked.memory)
    loaded = load_graph(asked.network, out, limited)
    graph = with_precisions(loaded, asked.network, limited, db=asked.db, exact=asked.exact, out=out)
    placing = None
    if asked.placer is not None:
        placing = asked.placer.place(graph, limited, asked.unwanted, asked.db, out)
        graph = placing.split.graph
    return Decided(graph, *placed_by(graph, limited, asked.unwanted, placing), placing)


def decided_by(plan: Path, asked: BuildRequest, devices: Sequence[Device], out: Output) -> Decided:
    """Load the network, and let a plan decide what each of the `devices` computes, which are the plan's. Raises
    BadInput where the plan does not fit the network or the devices."""
    from tuner.placement.plan_file import load_plan, precisions_of, read_plan
    from tuner.vendors import open_vendor, vendor_of

    said = load_plan(plan)
    if [device.name for device in devices] != (names := [d["name"] for d in said["devices"]]):
        raise BadInput(f"{plan}: was made for {' and '.join(names)}, not for --device {asked.device}")
    if asked.unwanted:
        raise BadInput(f"--plan {plan} says which device computes what: leave --fallback away")
    kernels = [step["kernel"] for step in said["steps"] if isinstance(step.get("kernel"), dict)]
    for library in filter(None, (vendor_of(str(kernel.get("template"))) for kernel in kernels)):
        open_vendor(library)
    graph = with_given(load_graph(asked.network, out, devices), precisions_of(said))
    return Decided(graph, list(devices), read_plan(plan, said, graph, devices))


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
        "precisions": [asdict(precision) for precision in manifest.precisions],
    }


def _untuned(manifest: Manifest) -> list[str]:
    return [operator.node for operator in manifest.operators if operator.source in ("default", "none")]


def show(manifest: Manifest, out: Output) -> None:
    """Show the choices, how many operators were not tuned for this device, the module's sizes, and the error of
    half precision or bfloat16."""
    from tuner.report.tables import sizes_text

    untuned = _untuned(manifest)
    out.show(choice_table(manifest))
    if manifest.precisions:
        out.show(precision_table(manifest.precisions))
    if manifest.vendors:
        out.show("kernels: " + shares(manifest))
    if untuned:
        out.remark(f"{len(untuned)} of {len(manifest.operators)} operators have not been tuned for this device")
    if shipped := sum(operator.source.startswith("shipped") for operator in manifest.operators):
        out.remark(f"{shipped} of {len(manifest.operators)} use configs that come with edgetune: tune to beat them")
    if manifest.sizes is not None:
        out.show(sizes_text(manifest.sizes))
    if manifest.dtype != "float32":
        known = f"largest error {worst(manifest):.1e} relative to the float32 model's largest output"
        title = "half precision" if manifest.dtype == "float16" else manifest.dtype
        out.show(f"{title}: {known if manifest.errors else 'its error is not known, as nothing was run'}")


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
    from tuner.report.text import clipped, describe, microseconds, short_config

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
