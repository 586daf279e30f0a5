"""Collect all operators that are written out in simpler ones before a model is imported.

Start at `write_operators`.
"""

from __future__ import annotations

import onnx

from tuner.errors import BadInput
from tuner.graph.importers.onnx.fold import TooLarge, fold_constants
from tuner.graph.importers.onnx.rewrites.contributed import CONTRIBUTED
from tuner.graph.importers.onnx.rewrites.four_bits import FEW_BITS
from tuner.graph.importers.onnx.rewrites.functions import FUNCTIONS
from tuner.graph.importers.onnx.rewrites.operators import WRITTEN
from tuner.graph.importers.onnx.rewrites.quantized import QUANTIZED
from tuner.graph.importers.onnx.rewrites.recurrent import RECURRENT
from tuner.graph.importers.onnx.rewrites.scan import SCAN
from tuner.graph.importers.onnx.rewrites.sequences import resolve_sequences
from tuner.graph.importers.onnx.rewrites.spectra import SPECTRA
from tuner.graph.importers.onnx.rewrites.writer import write_out

REWRITES = {**FUNCTIONS, **WRITTEN, **SPECTRA, **RECURRENT, **QUANTIZED, **CONTRIBUTED, **FEW_BITS, **SCAN}


def write_operators(model: onnx.ModelProto, source: str) -> None:
    """Fold constants and write operators out, in place, until neither changes anything, since each may need what the
    other has written. Raises BadInput, naming `source` and the node, for a node that cannot be computed."""
    try:
        fold_constants(model)
        while write_out(model, REWRITES, source) or resolve_sequences(model):
            fold_constants(model)
    except TooLarge as error:
        raise BadInput(f"{source}: {error}") from None
