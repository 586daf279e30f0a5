"""Builds RNNTC, RNNLM and NMT, unrolled: every step of every layer is an operator, and a layer's steps share its
weights.

Sizes are those of Jia, Zaharia and Aiken, "Beyond Data and Model Parallelism for Deep Neural Networks", section 8.1: 40
steps; RNNTC has four layers of 1024 units, RNNLM two of 2048, NMT two of 1024 in the encoder and two in the decoder,
with attention. The paper does not print vocabularies. Here they are Penn Treebank's 10,000 words (Zaremba et al. 2014),
30,000 words for movie reviews, and 32,000 word pieces for NMT (Wu et al. 2016).
"""

from __future__ import annotations

from typing import NamedTuple

from tuner.studies.networks.operators import Builder, Network


def rnntc(batch: int = 64, steps: int = 40, layers: int = 4, hidden: int = 1024) -> Network:
    """Return a network for text classification, with one softmax after the last step."""
    b = Builder(batch)
    b.branch = "softmax"
    last = _tower(b, _Size(steps, layers, hidden, 30_000), "")[-1]
    b.branch, b.depth = "softmax", layers - 1
    b.dense(last, 2, name="softmax", kind="softmax")
    return b.network("rnntc")


def rnnlm(batch: int = 64, steps: int = 40, layers: int = 2, hidden: int = 2048) -> Network:
    """Return a language model, with a softmax over all words at every step."""
    b = Builder(batch)
    for t, top in enumerate(_tower(b, _Size(steps, layers, hidden, 10_000), "")):
        b.branch, b.depth = f"softmax.{t}", layers - 1
        b.dense(top, 10_000, name=f"softmax.{t}", layer="softmax", kind="softmax")
    return b.network("rnnlm")


def nmt(batch: int = 64, steps: int = 40, layers: int = 2, hidden: int = 1024) -> Network:
    """Return a network for translation. The decoder's states start from the encoder's last ones, and attention is on
    top of the decoder's last layer."""
    b = Builder(batch)
    encoded = _tower(b, _Size(steps, layers, hidden, 32_000), "encoder.")
    ends = [i for i, o in enumerate(b.operators) if o.kind == "lstm" and o.name.endswith(f".{steps - 1}")]
    b.branch, b.depth = "states", layers - 1
    states = b.stack(encoded, name="states")
    for t, top in enumerate(_tower(b, _Size(steps, layers, hidden, 32_000), "decoder.", states=ends)):
        b.branch, b.depth = f"attention.{t}", layers - 1
        seen = b.attention(top, states, name=f"attention.{t}", layer="attention")
        b.branch = f"softmax.{t}"
        b.dense(seen, 32_000, name=f"softmax.{t}", layer="softmax", kind="softmax")
    return b.network("nmt")


class _Size(NamedTuple):
    """The size that a recurrent network has. `hidden` counts the values of a state, and `words` the vocabulary."""

    steps: int
    layers: int
    hidden: int
    words: int


def _tower(b: Builder, size: _Size, prefix: str, states: list[int] | None = None) -> list[int]:
    """Add an embedding and LSTM layers for each step, and return the indices of the last layer's outputs."""
    before: list[int | None] = list(states) if states else [None] * size.layers
    tops = []
    for t in range(size.steps):
        b.branch, b.depth = f"{prefix}embed.{t}", 0
        x = b.embed(size.words, size.hidden, name=f"{prefix}embed.{t}", layer=f"{prefix}embed")
        for layer in range(size.layers):
            b.branch, b.depth = f"{prefix}lstm{layer}.{t}", layer
            x = b.lstm(x, size.hidden, before[layer], name=f"{prefix}lstm{layer}.{t}", layer=f"{prefix}lstm{layer}")
            before[layer] = x
        tops.append(x)
    return tops
