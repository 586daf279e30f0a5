"""Define the options of the search by reinforcement learning, where `printed=1` stands for the paper's values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ReinforcementOptions:
    """Options that set how agents learn. Equations are those of Liu et al., Woodpecker-DL, section 2.4.

    `rounds` is the number of actions, each of which sets one knob, before a config is measured. `observation` is
    "paper" (the 17 elements, for conv2d) or "general" (the workload's sizes and every knob). `keep` is the share of the
    last hidden layer that dropout keeps while learning. `value` and `entropy` are the coefficients c1 and c2 of the
    loss (equation 7). `rate` is that of learning. `epochs` is the number of passes over the episodes of a batch.
    `discount` and `trace` are gamma and mu of equation 5. `clip` is that of the surrogate loss. `best` is the share of
    the episodes that begin at the best config known.

    `printed` stands for what the paper prints: the average divided by t (equation 3), rewards in microseconds, keep
    0.15, c1 0.15 and c2 20. `next_average` says what is wrong with that average. Entropy times 20 outweighs any reward,
    so the policy stays the uniform one that it began as.
    """

    rounds: int = 4
    observation: str = "paper"
    keep: float = 1.0
    value: float = 0.15
    entropy: float = 0.01
    rate: float = 3e-4
    epochs: int = 6
    discount: float = 0.99
    trace: float = 0.95
    clip: float = 0.2
    best: float = 0.5
    printed: bool = False

    def __post_init__(self) -> None:
        if self.observation not in ("paper", "general"):
            raise ValueError(f"observation is paper or general, not {self.observation!r}")
        if self.rounds < 1 or self.epochs < 1 or not 0 < self.keep <= 1 or self.rate <= 0:
            raise ValueError("rounds and epochs are at least 1, keep is above 0 and at most 1, rate positive")
        if self.printed:
            for name, value in {"keep": 0.15, "value": 0.15, "entropy": 20.0}.items():
                object.__setattr__(self, name, value)
