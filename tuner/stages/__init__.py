"""Operators of one device that run at the same time: which, found by dynamic programming over measured costs (paper
000). Start at `search`."""

from tuner.stages.endings import Cut, Limits
from tuner.stages.operators import StageOperator, OperatorGraph
from tuner.stages.schedule import Costs, Schedule, Stage, check, greedy, sequential, total
from tuner.stages.search import Block, StageSearchResult, Options, search

__all__ = [
    "Block",
    "Costs",
    "Cut",
    "StageSearchResult",
    "Limits",
    "StageOperator",
    "OperatorGraph",
    "Options",
    "Schedule",
    "Stage",
    "check",
    "greedy",
    "search",
    "sequential",
    "total",
]
