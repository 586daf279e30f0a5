"""`tune plan M.onnx --device opencl:0,cpu -o plan.json` chooses device, layout and kernel of all steps together."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from tuner.cli.common import (
    DEFAULT_DB,
    DEFAULT_DEVICE,
    DbOption,
    DtypeOption,
    ExactOption,
    JsonOption,
    MemoryOption,
    Output,
    PluginOption,
    ThreadsOption,
    VendorOption,
    check_parent_writable,
    import_plugins,
    refuse_boards,
    split_list,
    templates_asked,
    with_memory,
)
from tuner.cli.completion import BUILT_FOR, several_of
from tuner.cli.network import AS_FILE, BatchOption, ModelArgument, Network, ShapeOption, load_graph, network_asked
from tuner.cli.on_board import is_on_board, open_there, timing_there
from tuner.cli.precision import PrecisionOption, precision_asked, precision_table, with_precisions

if TYPE_CHECKING:
    from tuner.devices import Device
    from tuner.placement.timing import Timing

EXAMPLES = (
    "tune plan ssd.onnx --device opencl:0,cpu -o ssd.plan.json",
    "tune plan resnet18.onnx --threads 2 -o resnet18.plan.json",
)


def command(
    model: ModelArgument,
    *,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="PLAN", help="The file to write (JSON).")],
    shape: ShapeOption = None,
    batch: BatchOption = None,
    device: Annotated[
        str,
        typer.Option(
            "--device",
            "-d",
            metavar="D,...",
            help="The devices to choose from: opencl:0,cpu; of a board: board:NAME/opencl:0,cpu.",
            autocompletion=several_of(BUILT_FOR),
        ),
    ] = DEFAULT_DEVICE,
    threads: ThreadsOption = None,
    memory: MemoryOption = None,
    db: DbOption = DEFAULT_DB,
    no_winograd: ExactOption = False,
    dtype: DtypeOption = "float32",
    precision: PrecisionOption = AS_FILE,
    plugin: PluginOption = None,
    vendor: VendorOption = "",
    as_json: JsonOption = False,
) -> None:
    """Plan where and how every step of a model is computed, exactly, by measured costs.

    Kernels are the database's best; what it lacks of other steps, of transforms and copies is measured and kept there.
    """
    network = network_asked(model, shape, batch, dtype, precision_asked(precision))
    check_parent_writable(output)
    with Output(as_json) as out:
        import_plugins(templates_asked(plugin, vendor))
        opened, timing = _opened(device, threads, out)
        devices = with_memory(opened, memory)
        result = planned(network, devices, db, exact=no_winograd, out=out, timing=timing)
        output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        there = f" --device {device}" if is_on_board(device) else ""
        options = f"{network.options}{there} --plan {output} -o DIR"
        out.show(f"wrote {output}: change it, or build it with `tune build {model}{options}`")
        out.result({"output": str(output), **result})


def _opened(device: str, threads: int | None, out: Output) -> tuple[Sequence[Device], Timing | None]:
    """Open the devices that an option names, and return them with what measures on them, None if they are here."""
    from tuner.devices import open_devices

    if is_on_board(device):
        there = open_there(device, threads, out)
        return there, timing_there(device, there, out)
    devices = open_devices(split_list(device), threads)
    refuse_boards(devices)
    return devices, None


def planned(
    network: Network, devices: Sequence[Device], db: str, *, exact: bool, out: Output, timing: Timing | None = None
) -> dict[str, Any]:
    """Plan a network, show the plan and return it as JSON, with the seconds that every device alone would take.
    `timing` measures what the database lacks; by default the devices are here.

    Raises BadInput, DatabaseError.
    """
    from tuner.graph.layout.choice import rivals
    from tuner.placement.exact import plan_network, seconds_alone
    from tuner.placement.plan_file import described
    from tuner.placement.step_costs import Costs
    from tuning_db.store import open_db

    graph = with_precisions(load_graph(network, out, devices), network, devices, db=db, exact=exact, out=out)
    with open_db(db, create=False) as store:
        choices = [rivals((s.workload for s in graph.tuned), device, store, exact) for device in devices]
        costs = Costs(devices, store, timing=timing)
        found = plan_network(graph, devices, choices, costs)
        alone = {device.name: seconds_alone(found, i) for i, device in enumerate(devices)}
    result = {**described(graph, devices, found), "alone": alone, "measured": costs.measured}
    _show(result, out)
    if graph.precisions:
        out.show(precision_table(graph.precisions))
    return result


def _show(result: dict[str, Any], out: Output) -> None:
    from tuner.report.text import clipped

    table = Table(box=None, title="Plan", title_justify="left")
    for title in ("step", "computes", "device", "layout", "us", "known from"):
        table.add_column(title, justify="right" if title == "us" else "left", no_wrap=title == "us", overflow="fold")
    for step in result["steps"]:
        kernel = step.get("kernel")
        layout = kernel["template"] if kernel else f"NCHW{step['block']}c" if step.get("block") else "plain"
        row = (
            clipped(step["node"]),
            step["operator"],
            step["device"],
            layout,
            f"{1e6 * step['seconds']:.1f}",
            step["source"],
        )
        table.add_row(*row)
    out.show(table)
    moves = result["moves"]
    out.show(
        f"{1e3 * result['seconds']:.3f} ms, of which {1e3 * sum(m['seconds'] for m in moves):.3f} for "
        f"{sum('copy' in m for m in moves)} copies and {sum('transform' in m for m in moves)} transforms; "
        + ("no plan takes less" if result["optimal"] else f"no plan takes less than {1e3 * result['bound']:.3f} ms")
        + f" (width {result['width']}, {result['measured']} costs measured now)"
    )
    if len(result["alone"]) > 1:
        texts = [f"{n} alone: " + ("cannot" if s is None else f"{1e3 * s:.3f} ms") for n, s in result["alone"].items()]
        out.show("; ".join(texts))
