"""All operators that are written out in simpler ones before a model is imported. Start at `write_operators`."""

from __future__ import annotations

import onnx

from tuner.errors import BadInput
from tuner.graph.onnx_contributed import CONTRIBUTED
from tuner.graph.onnx_fold import TooLarge, fold_constants
from tuner.graph.onnx_functions import FUNCTIONS
from tuner.graph.onnx_quantized import QUANTIZED
from tuner.graph.onnx_recurrent import RECURRENT
from tuner.graph.onnx_scan import SCAN
from tuner.graph.onnx_sequences import resolve_sequences
from tuner.graph.onnx_spectra import SPECTRA
from tuner.graph.onnx_writer import write_out
from tuner.graph.onnx_written import WRITTEN

REWRITES = {**FUNCTIONS, **WRITTEN, **SPECTRA, **RECURRENT, **QUANTIZED, **CONTRIBUTED, **SCAN}


def write_operators(model: onnx.ModelProto, source: str) -> None:
    """Fold constants and write operators out, in place, until neither changes anything: what one writes, the other may
    need. Raises BadInput, with `source` and a node, for one that cannot be computed."""
    try:
        fold_constants(model)
        while write_out(model, REWRITES, source) or resolve_sequences(model):
            fold_constants(model)
    except TooLarge as error:
        raise BadInput(f"{source}: {error}") from None
