"""Define what a caller may choose of a network's stages. Start at `StageOptions`."""

from __future__ import annotations

from dataclasses import dataclass, field

from tuner.stages.search import Options


@dataclass(frozen=True)
class StageOptions:
    """Options of the stages of a network. They are searched for at most `seconds`, by the options `search`. `exact`
    forbids templates that round differently (Winograd) for merged kernels, too."""

    seconds: float
    search: Options = field(default_factory=Options)
    exact: bool = False
