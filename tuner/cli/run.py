"""`tune run DIR --input X.npz` runs a built module once, here or on a board, on given inputs or on random ones."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from tuner.cli.common import JsonOption, Output, check_file, check_parent_writable
from tuner.cli.on_board import BoardOption, check_board
from tuner.errors import BadInput

if TYPE_CHECKING:
    import numpy as np

    from tuner.export.on_board import BoardNetwork
    from tuner.module import Module

ModuleArgument = Annotated[Path, typer.Argument(metavar="DIR", help="A folder that `tune build` wrote.")]

EXAMPLES = (
    "tune run resnet18.tuned",
    "tune run resnet18.tuned --input inputs.npz --output outputs.npz",
    "tune run resnet18.pi --device board:pi",
)


def command(
    module: ModuleArgument,
    *,
    device: BoardOption = None,
    input: Annotated[
        Path | None,
        typer.Option("--input", "-i", metavar="X.npz", help="One array an input, by name (default: random numbers)."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="Y.npz", help="Where the outputs go, by name.")
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option("--trace", metavar="FILE", help="Write one inference's timeline, for ui.perfetto.dev."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Run a built module; threads follow TVM_NUM_THREADS."""
    check_board(device)
    if device is not None and trace is not None:
        raise BadInput(f"--trace {trace}: a board times whole networks: leave --trace or --device away")
    if input is not None:
        check_file(input, "an .npz file with one array an input")
    for path in filter(None, (output, trace)):
        check_parent_writable(path)
    with Output(as_json) as out:
        from tuner.arrays import read_arrays, write_arrays
        from tuner.module import Module
        from tuner.report.text import milliseconds

        given = None if input is None else read_arrays(input)
        with _opened(module, device, out) as loaded:
            inputs = given if given is not None else _drawn(loaded, out)
            outputs, seconds = _run(loaded, inputs)
            if output is not None:
                write_arrays(output, outputs)
            _show(outputs, out)
            out.show(f"the first inference took {milliseconds(seconds)} ms; `tune bench {module}` measures the next")
            if output is not None:
                out.show(f"wrote {output}")
            if trace is not None and isinstance(loaded, Module):
                _write_trace(module, loaded, inputs, path=trace, out=out)
            out.result(
                {
                    "outputs": {name: {"shape": list(a.shape), "dtype": str(a.dtype)} for name, a in outputs.items()},
                    "output": None if output is None else str(output),
                    "device": device,
                    "threads": loaded.threads,
                    "seconds": seconds,
                }
            )


@contextmanager
def _opened(module: Path, device: str | None, out: Output) -> Iterator[Module | BoardNetwork]:
    """Give a module, loaded here or on a board."""
    if device is None:
        from tuner.module import load

        yield load(module)
    else:
        from tuner.export.on_board import opened_on_board

        with opened_on_board(module, device, notice=out.remark) as network:
            yield network


def _drawn(loaded: Module | BoardNetwork, out: Output) -> dict[str, np.ndarray]:
    """Return random inputs, and say so."""
    from tuner.module import random_inputs
    from tuner.report.text import clipped

    tensors = loaded.manifest.inputs
    shapes = ", ".join(f"{clipped(t.name)} {'x'.join(map(str, t.shape))} {t.dtype}" for t in tensors)
    out.remark(f"random inputs ({shapes}): give your own with --input X.npz, as numpy.savez writes it")
    return random_inputs(tensors, seed=0)


def _run(loaded: Module | BoardNetwork, inputs: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], float]:
    """Run a module once. Return its outputs and its seconds, on the board if it is there."""
    from tuner.module import Module

    if not isinstance(loaded, Module):
        return loaded.run(inputs)
    start = time.perf_counter()
    return loaded(inputs), time.perf_counter() - start


def _show(outputs: dict[str, np.ndarray], out: Output) -> None:
    from tuner.report.text import clipped

    table = Table(box=None)
    for title in ("output", "shape", "dtype", "min", "mean", "max"):
        table.add_column(title)
    for name, array in outputs.items():
        extremes = (array.min(), array.mean(), array.max()) if array.size else ()  # a detector may find nothing
        numbers = [f"{value:.6g}" for value in extremes] or ["-"] * 3
        table.add_row(clipped(name), "x".join(map(str, array.shape)), str(array.dtype), *numbers)
    out.show(table)


def _write_trace(folder: Path, module: Module, inputs: dict[str, np.ndarray], *, path: Path, out: Output) -> None:
    from tuner.report.page.flow import flow_of
    from tuner.report.trace import chrome_trace

    flow, timeline = flow_of(folder, module.manifest), module.timeline(inputs)
    path.write_text(json.dumps(chrome_trace(module.manifest, timeline, flow)), encoding="utf-8")
    out.show(f"wrote {path}, {len(timeline.spans)} spans: open it at ui.perfetto.dev or chrome://tracing")
