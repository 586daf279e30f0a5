"""Reports what was found out about a candidate without running it. Start at `CandidateReport`; `judge` makes the report
of a candidate that compiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from templates.gpu.lowered import Kernel
from tuner.measure.offline.contract import Resources
from tuning_db.record import Config

# Work-items that spill more than this, 16 floats, pay for it in every turn of their loops.
SPILL_BYTES = 64


class Verdict(StrEnum):
    """Says what came of a candidate: it compiles, or why it is rejected."""

    OK = "ok"
    INVALID = "invalid"  # not a config of its space, or its schedule cannot be applied
    LIMIT = "limit"  # the device refuses it, or would compute it wrongly
    COMPILE = "compile"
    TIMEOUT = "timeout"
    SPILL = "spill"  # it compiles, and more registers are spilled than is worth measuring


@dataclass(frozen=True)
class KernelReport:
    """A kernel as it was lowered, and what its compiler says of it (None where no compiler gives figures)."""

    kernel: Kernel
    resources: Resources | None = None

    @property
    def local_bytes(self) -> int:
        """Return the local memory of a group, in bytes: what the compiler counts or the code declares, whichever is
        more. A compiler counts no memory whose size the launch says."""
        taken = self.resources.local_bytes if self.resources else None
        return max(self.kernel.local_bytes, taken or 0)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON has it."""
        return {**asdict(self.kernel), "compiled": asdict(self.resources) if self.resources else None}


@dataclass(frozen=True)
class CandidateReport:
    """Holds a config, its verdict with one line of explanation unless it is ok, and its kernels as far as the check
    got.

    `workspace_bytes` is the device memory that a call allocates for itself.
    """

    config: Config
    verdict: Verdict
    message: str = ""
    kernels: tuple[KernelReport, ...] = ()
    workspace_bytes: int = 0

    @property
    def features(self) -> Mapping[str, float]:
        """Return named numbers of the whole candidate, for rules and models: the worst kernel's resources."""
        return features(self.kernels)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON has it."""
        return {
            "config": self.config.as_dict(),
            "verdict": str(self.verdict),
            "message": self.message,
            "workspace_bytes": self.workspace_bytes,
            "features": dict(self.features),
            "kernels": [kernel.as_dict() for kernel in self.kernels],
        }


def features(kernels: Sequence[KernelReport]) -> dict[str, float]:
    """Return registers, spilled, private, binary and local bytes, each of the kernel that takes most of it. A number
    that a compiler does not tell of some kernel is left out."""
    row: dict[str, float] = {"kernels": float(len(kernels))}
    for name in ("registers", "spill_bytes", "private_bytes", "binary_bytes"):
        told = [getattr(k.resources, name) for k in kernels if k.resources is not None]
        if told and None not in told:
            row[name] = float(max(told))
    if kernels:
        row["local_bytes"] = float(max(kernel.local_bytes for kernel in kernels))
    return row


def judge(config: Config, kernels: Sequence[KernelReport], workspace_bytes: int) -> CandidateReport:
    """Return the report of a candidate that compiles: it is ok, unless a rule rejects it."""
    spilled = features(kernels).get("spill_bytes", 0.0)
    if spilled > SPILL_BYTES:
        message = f"{spilled:.0f} bytes of registers spilled by each work-item, more than {SPILL_BYTES}"
        return CandidateReport(config, Verdict.SPILL, message, tuple(kernels), workspace_bytes)
    return CandidateReport(config, Verdict.OK, "", tuple(kernels), workspace_bytes)
