"""The baselines place a network by the methods of others, one method a file. Start at `registry.strategy_of`."""

from __future__ import annotations

from tuner.studies.baselines.registry import BASELINES, strategy_of

__all__ = ["BASELINES", "strategy_of"]
