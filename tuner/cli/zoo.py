"""`tune zoo NAME -o FILE` writes a real architecture with random weights as an ONNX file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tuner.cli.common import JsonOption, Output
from tuner.cli.completion import NETWORKS, one_of

EXAMPLES = ("tune zoo", "tune zoo squeezenet1.0 -o net.onnx")


def command(
    name: Annotated[
        str | None, typer.Argument(help="The architecture; none: list them.", autocompletion=one_of(NETWORKS))
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The file (default: NAME.onnx).")] = None,
    batch: Annotated[int, typer.Option("--batch", help="Images at once.")] = 1,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Same seed, same weights.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Write a real architecture with random weights as ONNX, to try things on."""
    from tuner.zoo import names, write_model

    with Output(as_json) as out:
        if name is None:
            out.show("\n".join(names()))
            out.result({"names": names()})
            return
        path = write_model(name, output or Path(f"{name}.onnx"), batch, seed)
        out.show(f"wrote {path} ({path.stat().st_size / 1e6:.1f} MB)")
        out.result({"path": str(path), "bytes": path.stat().st_size})
