"""Choose values of one template's knobs with PPO from stable-baselines3. This module needs the extra `rl` and is
imported only where it is used. Start at `Agent`.

The library drives an environment step by step, but our measurements come in batches. So episodes are collected here,
all in parallel, and handed over in the library's own rollout buffer. Advantages, loss and optimiser are the library's.
The sources are Liu et al., "Woodpecker-DL: Accelerating Deep Neural Networks via Hardware-Aware Multifaceted
Optimizations", section 2.4 (action space, network, equations 5 to 7), and Schulman et al., "Proximal Policy
Optimization Algorithms", 2017.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

from tuner.search.reinforcement.options import ReinforcementOptions

HIDDEN = (512, 1024, 1024, 512)


@dataclass(frozen=True)
class Step:
    """One action that the agent took, with the observation before it, its value estimate and the logarithm of its
    probability."""

    observation: np.ndarray
    action: int
    value: float
    log_probability: float


class Network(BaseFeaturesExtractor):  # type: ignore[misc]
    """A network that has four fully connected layers (tanh, tanh, selu, selu) and dropout. Policy and value are linear
    heads on it."""

    def __init__(self, space: gymnasium.spaces.Box, keep: float) -> None:
        super().__init__(space, HIDDEN[-1])
        sizes = (int(space.shape[0]), *HIDDEN)
        activations = (torch.nn.Tanh, torch.nn.Tanh, torch.nn.SELU, torch.nn.SELU)
        layers: list[torch.nn.Module] = []
        for before, after, activation in zip(sizes, sizes[1:], activations, strict=False):
            layers += [torch.nn.Linear(before, after), activation()]
        self.layers = torch.nn.Sequential(*layers, torch.nn.Dropout(1 - keep))

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return self.layers(observations)


class _Shapes(gymnasium.Env):  # type: ignore[misc]
    """An environment that only says what observations and actions look like. It is never stepped."""

    def __init__(self, observations: int, actions: int) -> None:
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (observations,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(actions)


class Agent:
    """An agent that chooses actions and learns from episodes. All randomness comes from the seeds that it is given."""

    def __init__(self, observations: int, actions: int, options: ReinforcementOptions, seed: int) -> None:
        torch.set_num_threads(1)  # the other cores measure
        self._options = options
        with _seeded(seed):
            self._model = PPO(
                "MlpPolicy",
                _Shapes(observations, actions),
                learning_rate=options.rate,
                n_steps=64,  # size of PPO's own buffer, which is not used
                batch_size=64,
                n_epochs=options.epochs,
                gamma=options.discount,
                gae_lambda=options.trace,
                clip_range=options.clip,
                normalize_advantage=not options.printed,
                ent_coef=options.entropy,
                vf_coef=options.value,
                policy_kwargs={
                    "features_extractor_class": Network,
                    "features_extractor_kwargs": {"keep": options.keep},
                    "net_arch": [],
                },
                device="cpu",
            )
        self._model.set_logger(Logger(None, []))

    def act(self, observations: Sequence[Sequence[float]], seed: int) -> list[Step]:
        """Draw one action for each observation from the policy's multinomial distribution."""
        seen = np.array(observations, dtype=np.float32)
        self._model.policy.set_training_mode(False)
        with _seeded(seed), torch.no_grad():
            actions, values, logs = self._model.policy(torch.as_tensor(seen))
        rows = zip(seen, actions.tolist(), values.flatten().tolist(), logs.tolist(), strict=True)
        return [Step(*row) for row in rows]

    def learn(self, episodes: Sequence[Sequence[Step]], rewards: Sequence[float], seed: int) -> None:
        """Learn from episodes of equal length, each rewarded after its last action."""
        length, count = len(episodes[0]), len(episodes)
        model = self._model
        buffer = RolloutBuffer(
            length, model.observation_space, model.action_space, "cpu", model.gae_lambda, model.gamma, count
        )
        for at in range(length):
            steps = [episode[at] for episode in episodes]
            buffer.add(
                np.stack([s.observation for s in steps]),
                np.array([[s.action] for s in steps]),
                np.array(rewards) if at == length - 1 else np.zeros(count),
                np.full(count, at == 0),
                torch.tensor([s.value for s in steps]),
                torch.tensor([s.log_probability for s in steps]),
            )
        buffer.compute_returns_and_advantage(torch.zeros(count), np.ones(count))
        model.rollout_buffer = buffer
        with _seeded(seed):
            model.train()


@contextmanager
def _seeded(seed: int) -> Iterator[Any]:
    """Let torch and NumPy draw from this seed inside the block, and restore their state afterwards, because a session
    has many agents."""
    state = np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        np.random.seed(seed % 2**32)
        try:
            yield
        finally:
            np.random.set_state(state)
