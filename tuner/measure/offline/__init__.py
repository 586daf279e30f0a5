"""Compiles candidates for devices that are not here, and reports on each one's kernels.

Start at `OfflineRunner`. Every compiler is one file (`clang`, `ocloc`, `nvrtc`); `compilers` finds those that a profile
needs. The compilers miss what a device refuses at launch, so templates.gpu.checks looks for that before they run.

A report is not a trial: it has no time. Nothing is gained by keeping it in the tuning database, where a board's own
trials, under the board's own key, decide. It goes into the result of the command, as JSON.
"""

from tuner.measure.offline.compilers import compiler_named, compilers_of
from tuner.measure.offline.contract import Compiler, Resources
from tuner.measure.offline.report import CandidateReport, KernelReport, Verdict
from tuner.measure.offline.runner import OfflineOptions, OfflineRunner

__all__ = [
    "CandidateReport",
    "Compiler",
    "KernelReport",
    "OfflineOptions",
    "OfflineRunner",
    "Resources",
    "Verdict",
    "compiler_named",
    "compilers_of",
]
