"""Measuring: candidates in, trials out. Start at `contract.Runner`; `LocalRunner` measures on this machine's CPU.

Everything that a candidate can do wrong happens in child processes: `builder` compiles, `executor` runs. The tuner's
side of them is `pool` and `laboratory`; both get their workers from `processes`.
"""

from tuner.measure.contract import Candidate, MeasureOptions, Runner
from tuner.measure.local import LocalRunner
from tuner.measure.timing import Repetition
from tuner.measure.toolchain import check_toolchain

__all__ = ["Candidate", "LocalRunner", "MeasureOptions", "Repetition", "Runner", "check_toolchain"]
