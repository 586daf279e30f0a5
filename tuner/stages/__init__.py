"""Operators of one device that run at the same time: which, found by dynamic programming over measured costs (paper
000). Start at `search`."""

from tuner.stages.endings import Cut, Limits
from tuner.stages.operators import OperatorGraph, StageOperator
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
    "StageSearchResult",
    "check",
    "greedy",
    "search",
    "sequential",
    "total",
]
