"""The policy reads a sequence of groups and chooses a device for each (Mirhoseini et al., "Device Placement
Optimization with Reinforcement Learning", section 3.2). Start at `Policy.sample`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tuner.studies.learned.groups import Groups


class Policy(nn.Module):  # type: ignore[misc]
    """A pair of LSTMs that samples placements.

    The first LSTM reads the groups: an embedding of each group's type, its output shape and its neighbours. The second
    one decides one group a step, with additive attention (Bahdanau et al., 2015) over the outputs of the first. It also
    reads the embedding of the device that it chose before. `width` is the size of both LSTMs, `attention` the size of
    the vectors that the attention compares.
    """

    def __init__(
        self, groups: Groups, devices: int, width: int = 64, *, embedding: int = 16, attention: int = 16
    ) -> None:
        super().__init__()
        self._kinds = torch.as_tensor(groups.kinds)
        self._features = torch.as_tensor(groups.features)
        self._types = nn.Embedding(groups.types, embedding)
        self._devices = nn.Embedding(devices + 1, embedding)  # the last one stands for "no device yet"
        self._neighbours = nn.Linear(groups.features.shape[1], width)
        self._encoder = nn.LSTM(embedding + width, width, batch_first=True)
        self._decoder = nn.LSTMCell(embedding + 2 * width, width)
        self._query, self._keys = nn.Linear(width, attention), nn.Linear(width, attention, bias=False)
        self._score, self._choice = nn.Linear(attention, 1, bias=False), nn.Linear(2 * width, devices)

    def sample(self, count: int, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """Sample `count` placements, as (count, groups), and the log of each one's probability, as (count,). Without a
        generator every choice is the likeliest one."""
        seen = torch.cat([self._types(self._kinds), torch.tanh(self._neighbours(self._features))], dim=1)
        encoded, (hidden, cell) = self._encoder(seen[None])
        keys = self._keys(encoded)
        state, memory = (x[0].expand(count, -1).contiguous() for x in (hidden, cell))
        before = torch.full((count,), self._devices.num_embeddings - 1)
        chosen, probabilities = [], []
        for step in range(encoded.shape[1]):
            weights = torch.softmax(self._score(torch.tanh(keys + self._query(state)[:, None])), dim=1)
            context = (weights * encoded).sum(dim=1)
            here = encoded[:, step].expand(count, -1)
            state, memory = self._decoder(torch.cat([self._devices(before), context, here], dim=1), (state, memory))
            logits = torch.log_softmax(self._choice(torch.cat([state, here], dim=1)), dim=1)
            if generator is None:
                before = logits.argmax(dim=1)
            else:
                before = torch.multinomial(logits.detach().exp(), 1, generator=generator)[:, 0]
            chosen.append(before)
            probabilities.append(logits.gather(1, before[:, None])[:, 0])
        return torch.stack(chosen, dim=1), torch.stack(probabilities, dim=1).sum(dim=1)
