"""Options of the search by reinforcement learning, with the paper's values as `printed=1`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ReinforcementOptions:
    """`rounds`: actions, each of which sets one knob, before a config is measured; `observation`: "paper" (the 17
    elements, for conv2d) or "general" (the workload's sizes and every knob); `keep`: share of the last hidden layer
    that dropout keeps while learning; `value` and `entropy`: coefficients c1 and c2 of the loss (equation 7); `rate` of
    learning; `epochs` over the episodes of a batch; `discount` and `trace`: gamma and mu of equation 5; `clip` of the
    surrogate loss; `best`: share of the episodes that begin at the best config known.

    `printed`: the average divided by t (equation 3), rewards in microseconds, keep 0.15, c1 0.15 and c2 20, as the
    paper has them. See `reward` for what is wrong with the first; entropy times 20 outweighs any reward there is, so
    that the policy stays the uniform one it began as.
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
