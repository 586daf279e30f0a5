"""The papers' networks: known sizes, and operators that fit together."""

from __future__ import annotations

import pytest

from tuner.errors import BadInput
from tuner.studies.networks import NETWORKS, network
from tuner.studies.networks.operators import Builder

# Multiply-adds of one image (1e9) and parameters (1e6), as published: AlexNet (one tower), ResNet-101, Inception-v3.
PUBLISHED = {"alexnet": (0.71, 61.1), "resnet101": (7.8, 44.5), "inception_v3": (5.7, 23.8)}


@pytest.mark.parametrize(("name", "multiplies", "parameters"), [(n, *v) for n, v in PUBLISHED.items()])
def test_image_networks_have_their_published_size(name: str, multiplies: float, parameters: float) -> None:
    found = network(name, batch=1)
    assert found.flop / 2e9 == pytest.approx(multiplies, rel=0.02)
    assert found.weights / 4e6 == pytest.approx(parameters, rel=0.01)


@pytest.mark.parametrize("name", NETWORKS)
def test_operators_come_behind_those_they_read(name: str) -> None:
    found = network(name)
    for i, operator in enumerate(found.operators):
        assert len(operator.axes) == len(operator.shape)
        assert operator.axes[0] == "s"
        assert bool(operator.weights) == ("p" in operator.axes)
        assert all(u < i for u in operator.inputs)
        for u, reads in zip(operator.inputs, operator.reads, strict=True):
            assert len(reads) == len(found.operators[u].shape)
    assert len({o.name for o in found.operators}) == len(found.operators)
    assert len(found.branches) == len(found.depths) == len(found.operators)


def test_steps_of_a_layer_share_their_weights() -> None:
    short, long = network("rnnlm", steps=2), network("rnnlm", steps=5)
    assert short.weights == long.weights
    assert long.flop == pytest.approx(2.5 * short.flop)
    parameters = 2 * 4 * 2048 * (2 * 2048 + 1) + 10_000 * 2048 + 2049 * 10_000
    assert short.weights == 4 * parameters


def test_a_decoder_starts_where_the_encoder_ended() -> None:
    found = network("nmt", steps=3)
    names = [o.name for o in found.operators]
    first = found.operators[names.index("decoder.lstm1.0")]
    assert names.index("encoder.lstm1.2") in first.inputs


def test_unknown_networks_are_refused() -> None:
    with pytest.raises(BadInput, match="give one of alexnet"):
        network("vgg")


def test_a_concatenation_reads_each_operand_where_it_lies() -> None:
    b = Builder(2)
    x = b.conv(b.image(3, 8), 4, 1)
    y = b.conv(x, 6, 1)
    joined = b.operators[b.concat([x, y])]
    assert joined.shape == (2, 10, 8, 8)
    assert [r[1].shift for r in joined.reads] == [0, -4]
