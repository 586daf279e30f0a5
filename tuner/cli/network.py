"""Describes and loads the network that a command is about. Start at `network_asked` and `load_graph`.

A network is a file, the sizes of its free axes, and the type that its values are stored in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tuner.cli.common import Output, check_dtype, check_file
from tuner.errors import BadInput

if TYPE_CHECKING:
    from tvm.target import Target

    from tuner.devices import Device
    from tuner.graph import FusedGraph
    from tuner.module import Manifest
    from tuner.session import Task

AS_FILE = "as-file"  # the precision that a quantised file says
ModelArgument = Annotated[Path, typer.Argument(metavar="M.onnx", help="An ONNX model.")]
ShapeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--shape", metavar="NAME=N,...", help="The shape of an input with free axes: x=1,3,224,224 (may be repeated)."
    ),
]
BatchOption = Annotated[
    int | None, typer.Option("--batch", metavar="N", help="The size of every first axis that is free (default: 1).")
]


@dataclass(frozen=True)
class Network:
    """An ONNX file and how it is loaded.

    `shapes` and `batch` are arguments of tuner.graph.load_onnx. `dtype` is the type that values are stored in, or
    multiplied in.
    `precision` says in which precision the operators of a quantised file are computed (see tuner.cli.precision).
    """

    file: Path
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    batch: int | None = None
    dtype: str = "float32"
    precision: str = AS_FILE

    @property
    def options(self) -> str:
        """Return the command-line options that describe this network, each with a blank before it."""
        shapes = "".join(f" --shape {name}={','.join(map(str, shape))}" for name, shape in self.shapes.items())
        batch = "" if self.batch is None else f" --batch {self.batch}"
        return shapes + batch


def network_asked(
    file: Path, shapes: Sequence[str] | None, batch: int | None, dtype: str = "float32", precision: str = AS_FILE
) -> Network:
    """Return the network that a command's options describe.

    Raises BadInput for a file that cannot be read and for an option that is wrong in itself.
    """
    check_dtype(dtype)
    check_file(file, "an ONNX model")
    if precision != AS_FILE and dtype != "float32":
        raise BadInput(f"--precision {precision}: is for networks in float32: leave --dtype {dtype} away")
    return Network(file, dict(map(_shape, shapes or ())), batch, dtype, precision)


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, _, sizes = text.rpartition("=")  # a name may have an equals sign, sizes have none
    try:
        shape = tuple(int(size) for size in sizes.split(","))
    except ValueError:
        shape = ()
    if not name or not shape:
        raise BadInput(f"--shape {text}: give an input's name and its sizes, such as --shape x=1,3,224,224")
    return name, shape


def load_tasks(
    network: Network, out: Output, target: Target, merged: bool = False, parts: tuple[Path, str] | None = None
) -> list[Task]:
    """Return the tuning tasks of a network on a target.

    `merged` adds those of merged kernels for its stages. `parts` is a placement's file and a device, and adds those of
    the parts of steps that the file gives the device. Where precisions are to be chosen, both forms of each operator
    are tasks. Raises BadInput for a network or a file that cannot be used.
    """
    from tuner.graph import merged_tasks, tasks_of, tasks_of_both

    graph = _load(network, out, [target])
    tasks = tasks_of(graph) if network.precision == AS_FILE else tasks_of_both(graph)
    more = merged_tasks(graph) if merged else []
    if parts is not None:
        from tuner.studies.parts import part_tasks

        more = [*more, *part_tasks(parts[0], graph, parts[1])]
    known = {task.workload for task in tasks}
    return [*tasks, *{task.workload: task for task in more if task.workload not in known}.values()]


def load_graph(network: Network, out: Output, devices: Sequence[Device] = ()) -> FusedGraph:
    """Load and fuse a network. Raises BadInput if it cannot be used.

    Before that, BadInput is raised if one of `devices` cannot store values of the network's type.
    """
    from tuner.devices import check_storage

    for device in devices:
        check_storage(network.dtype, device.target, device.title)
    return _load(network, out, [device.target for device in devices])


def _load(network: Network, out: Output, targets: Sequence[Target]) -> FusedGraph:
    from tuner.cli.limits import memory_limited
    from tuner.graph import (
        four_bits_remark,
        fuse_for,
        halved,
        keeps_four_bits,
        load_onnx,
        precisions,
        with_bfloats,
    )

    with memory_limited(network.file):
        model = load_onnx(network.file, shapes=network.shapes, batch=network.batch)
    if network.precision != AS_FILE and model.rounding != "int8":
        raise BadInput(
            f"{network.file}: is not quantised, as --precision {network.precision} asks: `tune quantize` makes a "
            "quantised file of it"
        )
    graph = fuse_for(model, targets, integers=network.dtype == "float32")
    is_chosen = network.precision == AS_FILE  # otherwise whoever chooses says what was chosen
    remarks = [*graph.model.remarks, *([precisions(graph)] if model.rounding == "int8" and is_chosen else [])]
    for line in filter(None, (*remarks, four_bits_remark(model, keeps_four_bits(targets)))):
        out.remark(line)
    if network.dtype == "bfloat16":
        return with_bfloats(graph, targets)
    return halved(graph, targets) if network.dtype == "float16" else graph


def find_model(
    module: Path, manifest: Manifest, given: Path | None = None, *, remedy: str = "give the file with --model"
) -> Path:
    """Return the ONNX file that a module was built from: the `given` one, or the one that the manifest names. Raises
    BadInput, with the remedy, if it is gone or the module was built from another."""
    from tuner.graph.importers.onnx.check import read_onnx
    from tuner.graph.importers.onnx.shapes import free_inputs, identity

    source = given or Path(manifest.model["source"])
    if given is None and not source.is_file():
        raise BadInput(f"{module} was built from {source}, which is not there (any more): {remedy}")
    proto, digest = read_onnx(source)
    free = set(free_inputs(proto))
    if identity(digest, {t.name: t.shape for t in manifest.inputs if t.name in free}) != manifest.model["sha256"]:
        raise BadInput(f"{source} is not the file that {module} was built from: {remedy}, or build again")
    return source
