"""Chooses operators of one device that run at the same time, by dynamic programming over measured costs. Start at
`search`. The source is the paper on inter-operator parallelism, "Accelerate DNN Inference by Inter-Operator
Parallelism" (ICLR 2020 submission).
"""

from tuner.stages.endings import Cut, Limits
from tuner.stages.operators import OperatorGraph, StageOperator
from tuner.stages.options import StageOptions
from tuner.stages.schedule import Costs, Schedule, Stage, check, greedy, sequential, total
from tuner.stages.search import Block, Options, StageSearchResult, search

__all__ = [
    "Block",
    "Costs",
    "Cut",
    "Limits",
    "OperatorGraph",
    "Options",
    "Schedule",
    "Stage",
    "StageOperator",
    "StageOptions",
    "StageSearchResult",
    "check",
    "greedy",
    "search",
    "sequential",
    "total",
]
