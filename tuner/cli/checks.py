"""Defines how a built module is verified. Start at `check_of`.

It has the options `--tolerance` and `--input`, and the check that they ask for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tuner.cli.common import Output, check_file
from tuner.cli.network import Network
from tuner.errors import BadInput, VerificationFailed

if TYPE_CHECKING:
    import numpy as np

    from tuner.graph import FusedGraph
    from tuner.module import Module

ToleranceOption = Annotated[
    float | None,
    typer.Option(
        "--tolerance",
        metavar="E",
        help="How far an output may be off the model's, of its largest value (default: 1e-4, or what the reference "
        "itself rounds away; 2e-2 in half precision, 0.1 with bfloat16 or of a quantised file).",
    ),
]
InputOption = Annotated[
    Path | None,
    typer.Option("--input", "-i", metavar="X.npz", help="Inputs to verify it on besides random ones, by name."),
]


@dataclass(frozen=True)
class Checks:
    """The tolerance and the inputs that a module is verified with.

    `tolerance` says how far outputs may be off; None means the default (see tuner.module.verification). `inputs` are
    the user's own, used besides random ones; None means that there are none.
    """

    tolerance: float | None = None
    inputs: Mapping[str, np.ndarray] | None = None


def checks_asked(tolerance: float | None, inputs: Path | None) -> Checks:
    """Return the checks that the options ask for. Raises BadInput for a bad tolerance or a file that cannot be read."""
    from tuner.arrays import read_arrays

    if tolerance is not None and not tolerance > 0:
        raise BadInput(f"--tolerance {tolerance:g}: it has to be above 0, such as 1e-3")
    if inputs is not None:
        check_file(inputs, "an .npz file with one array an input")
    return Checks(tolerance, None if inputs is None else read_arrays(inputs))


def check_of(
    network: Network, graph: FusedGraph, checks: Checks, *, rebuild: Callable[[Path, Path], Module], out: Output
) -> Callable[[Path], dict[str, float]]:
    """Return a function that compares the module in a folder with the network's file.

    The function returns the error of each output, or raises VerificationFailed. `rebuild` builds a part of the network
    from the part's file into a folder, for the whole's devices. It serves to find the first operator that is off.
    """
    from tuner.graph import Parts
    from tuner.module import OnnxReference, VerifyOptions, first_off, load, verify

    def locate(tensor: str, inputs: Mapping[str, np.ndarray], allowed: float) -> str | None:
        out.show(f"{tensor} is off: looking for the first operator that is")
        parts = Parts(network.file, shapes=network.shapes, batch=network.batch)
        return first_off(parts, tensor, inputs, allowed=allowed, build=rebuild)

    def check(folder: Path) -> dict[str, float]:
        reference = OnnxReference(network.file)
        try:
            return verify(
                load(folder),
                reference,
                VerifyOptions(given=checks.inputs, tolerance=checks.tolerance),
                graph=graph,
                own_errors=reference.own_errors,
                locate=locate,
            )
        except VerificationFailed as error:
            raise VerificationFailed(f"{error}; --tolerance allows more, where that is accurate enough") from None

    return check
