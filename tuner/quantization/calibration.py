"""Measure the ranges of a network's values on samples, with onnxruntime's calibrators. Start at `value_ranges`."""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod
from onnxruntime.quantization.calibrate import TensorsData, create_calibrator

from tuner.activity import activity
from tuner.errors import BadInput, last_line
from tuner.module.reference import plain_options
from tuner.quantization.operators import JOINTS, MOVERS, PRODUCTS
from tuner.quantization.samples import Sample, Samples

# The default number of bins, 128, leaves entropy a single threshold to choose, the whole range. A tensor takes a tenth
# of a second with this one, and four times as long with twice as many.
_ENTROPY_BINS = 512


class Method(StrEnum):
    """How the range of a tensor follows from its values on the samples: from the least to the largest, the range that
    holds a percentage of them, or the one whose quantised distribution has the least relative entropy."""

    MINMAX = "minmax"
    PERCENTILE = "percentile"
    ENTROPY = "entropy"


@dataclass(frozen=True)
class Calibration:
    """The method, and the percentage of the values that `percentile` keeps."""

    method: Method = Method.MINMAX
    percentile: float = 99.999


class _Reader(CalibrationDataReader):  # type: ignore[misc]
    """Gives one sample to a calibrator."""

    def __init__(self, sample: Sample) -> None:
        self._left: list[Sample] = [sample]

    def get_next(self) -> Sample | None:
        return self._left.pop() if self._left else None


def value_ranges(
    model: onnx.ModelProto,
    samples: Samples,
    calibration: Calibration,
    *,
    scratch: Path,
) -> TensorsData:
    """Return the ranges of all tensors that products, joints and movers read and write, by their names.

    Samples are read one by one. Files go to the folder `scratch`. Raises BadInput for a sample that does not fit, or
    that onnxruntime cannot run.
    """
    method, extra = _OPTIONS[calibration.method]
    if calibration.method is Method.PERCENTILE:
        extra = {**extra, "percentile": calibration.percentile}
    file = scratch / "calibrated.onnx"
    onnx.save(model, file)
    calibrator = create_calibrator(
        file,
        [*PRODUCTS, *JOINTS, *MOVERS],
        str(scratch / "augmented.onnx"),
        calibrate_method=method,
        extra_options=extra,
    )
    calibrator.infer_session = onnxruntime.InferenceSession(
        calibrator.augmented_model_path, plain_options(), providers=["CPUExecutionProvider"]
    )
    try:
        with activity("calibrating", len(samples)) as done:
            for index, sample in enumerate(samples):
                done(index)
                with contextlib.redirect_stdout(io.StringIO()):  # histograms are told of there
                    calibrator.collect_data(_Reader(sample))
        with contextlib.redirect_stdout(io.StringIO()):
            return calibrator.compute_data()
    except BadInput:
        raise
    except Exception as error:  # onnxruntime has an error type for every reason
        raise BadInput(f"the samples cannot be calibrated with ({last_line(error)})") from error


_OPTIONS: dict[Method, tuple[CalibrationMethod, dict[str, Any]]] = {
    Method.MINMAX: (CalibrationMethod.MinMax, {}),
    Method.PERCENTILE: (CalibrationMethod.Percentile, {}),
    Method.ENTROPY: (CalibrationMethod.Entropy, {"num_bins": _ENTROPY_BINS}),
}
