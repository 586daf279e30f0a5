"""Call onnxruntime's CPU kernels, with one session for every operator.

Its threads sleep between calls, because a network's next kernels are ours and need the cores.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnxruntime

from tuner.graph import operator_model
from tuner.vendors.base import OPS
from tuner.vendors.host import Call, HostTemplate, Library, Prepared
from tuning_db.record import Workload


class OnnxRuntime(Library):
    """The library onnxruntime, which computes an operator in a session of its own."""

    name = "onnxruntime"
    version = onnxruntime.__version__

    def prepared(self, workload: Workload, weight: np.ndarray, bias: np.ndarray | None, threads: int) -> Prepared:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.add_session_config_entry("session.force_spinning_stop", "1")
        options.log_severity_level = 3
        model = operator_model(workload, weight, bias).SerializeToString()
        return _Session(onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"]))


class _Session:
    def __init__(self, session: onnxruntime.InferenceSession) -> None:
        self._session = session

    def bound(self, reads: Sequence[np.ndarray], out: np.ndarray) -> Call:
        binding = self._session.io_binding()
        for info, array in zip(self._session.get_inputs(), reads, strict=True):
            binding.bind_input(info.name, "cpu", 0, np.float32, array.shape, array.ctypes.data)
        binding.bind_output(self._session.get_outputs()[0].name, "cpu", 0, np.float32, out.shape, out.ctypes.data)
        return lambda: self._session.run_with_iobinding(binding)


TEMPLATES = tuple(HostTemplate(OnnxRuntime(), op) for op in OPS)
