"""Which network a command is about: a file, the sizes of its free axes, and how its values are stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tuner.cli.common import Output, check_dtype, check_file
from tuner.errors import BadInput

if TYPE_CHECKING:
    from tuner.devices import Device
    from tuner.graph import FusedGraph
    from tuner.session import Task

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
    """An ONNX file; `shapes` and `batch` as tuner.graph.load_onnx takes them; `dtype` is what its values are stored
    as."""

    file: Path
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    batch: int | None = None
    dtype: str = "float32"

    @property
    def options(self) -> str:
        """Return the options that say the same, each with a blank before it."""
        shapes = "".join(f" --shape {name}={','.join(map(str, shape))}" for name, shape in self.shapes.items())
        batch = "" if self.batch is None else f" --batch {self.batch}"
        return shapes + batch


def network_asked(file: Path, shapes: Sequence[str] | None, batch: int | None, dtype: str = "float32") -> Network:
    """Return what a command's options say. Raises BadInput for a file that is not there and for an option that is
    wrong in itself."""
    check_dtype(dtype)
    check_file(file, "an ONNX model")
    return Network(file, dict(map(_shape, shapes or ())), batch, dtype)


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
    network: Network, out: Output, merged: bool = False, parts: tuple[Path, str] | None = None
) -> list[Task]:
    """Return the tuning tasks of a network; `merged`: and of merged kernels for its stages; `parts`: and of the
    parts of steps that a placement's file gives a device. Raises BadInput for one that cannot be used."""
    from tuner.graph import merged_tasks, tasks_of

    graph = load_graph(network, out)
    tasks = tasks_of(graph)
    more = merged_tasks(graph) if merged else []
    if parts is not None:
        from tuner.studies.parts import part_tasks

        more = [*more, *part_tasks(parts[0], graph, parts[1])]
    known = {task.workload for task in tasks}
    return [*tasks, *{task.workload: task for task in more if task.workload not in known}.values()]


def load_graph(network: Network, out: Output, devices: Sequence[Device] = ()) -> FusedGraph:
    """Load and fuse a network. Raises BadInput for one that cannot be used, and before that for one of `devices` that
    does not store its values."""
    from tuner.cli.limits import memory_limited
    from tuner.devices import check_storage
    from tuner.graph import fuse, halved, load_onnx

    for device in devices:
        check_storage(network.dtype, device.target, device.title)
    with memory_limited(network.file):
        graph = fuse(load_onnx(network.file, shapes=network.shapes, batch=network.batch))
    for line in graph.model.remarks:
        out.remark(line)
    return halved(graph) if network.dtype == "float16" else graph
