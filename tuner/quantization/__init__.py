"""This package quantises networks to 8 bits with onnxruntime's quantizer, within bounds on what that costs.

`quantize` does all of it. `open_samples` reads the samples that it needs.
"""

from tuner.quantization.calibration import Calibration, Method
from tuner.quantization.choosing import Bounds, Choice, Judged, Variant
from tuner.quantization.judging import Judge, Quality
from tuner.quantization.operators import Network, Operator
from tuner.quantization.prepare import Prepared, prepare
from tuner.quantization.quantize import Quantized, Wanted, quantize
from tuner.quantization.samples import Pixels, Samples, open_samples, read_labels

__all__ = [
    "Bounds",
    "Calibration",
    "Choice",
    "Judge",
    "Judged",
    "Method",
    "Network",
    "Operator",
    "Pixels",
    "Prepared",
    "Quality",
    "Quantized",
    "Samples",
    "Variant",
    "Wanted",
    "open_samples",
    "prepare",
    "quantize",
    "read_labels",
]
