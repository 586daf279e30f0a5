"""Search by reinforcement learning (extra `rl`): PPO chooses actions that change one knob each. Start at `searcher`."""

from __future__ import annotations

from tuner.search.reinforcement.options import ReinforcementOptions
from tuner.search.reinforcement.searcher import ReinforcementSearcher

__all__ = ["ReinforcementOptions", "ReinforcementSearcher"]
