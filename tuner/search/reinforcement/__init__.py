"""Search by reinforcement learning (extra `rl`): PPO over actions that change one knob. Start at `searcher`."""

from __future__ import annotations

from tuner.search.reinforcement.options import ReinforcementOptions
from tuner.search.reinforcement.searcher import ReinforcementSearcher

__all__ = ["ReinforcementOptions", "ReinforcementSearcher"]
