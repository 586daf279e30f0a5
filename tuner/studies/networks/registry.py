"""The networks by name."""

from __future__ import annotations

from collections.abc import Callable

from tuner.errors import BadInput
from tuner.studies.networks.cnn import alexnet, inception_v3, lenet, resnet101
from tuner.studies.networks.operators import Network
from tuner.studies.networks.recurrent import nmt, rnnlm, rnntc

# The six of paper 002, table 3, in its order, then the one of section 8.4.
NETWORKS: dict[str, Callable[..., Network]] = {
    "alexnet": alexnet,
    "resnet101": resnet101,
    "inception_v3": inception_v3,
    "rnntc": rnntc,
    "rnnlm": rnnlm,
    "nmt": nmt,
    "lenet": lenet,
}


def network(name: str, **options: int) -> Network:
    """A network with its papers' sizes; `options`: `batch`, and of recurrent ones `steps`, `layers` and `hidden`.

    Raises BadInput for a name that none has.
    """
    if name not in NETWORKS:
        raise BadInput(f"unknown network {name!r}: give one of {', '.join(NETWORKS)}")
    return NETWORKS[name](**options)
