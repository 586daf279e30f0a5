"""Names the networks. Start at `network`."""

from __future__ import annotations

from collections.abc import Callable

from tuner.errors import BadInput
from tuner.studies.networks.cnn import alexnet, inception_v3, lenet, resnet101
from tuner.studies.networks.operators import Network
from tuner.studies.networks.recurrent import nmt, rnnlm, rnntc

# The first six are those of Jia, Zaharia and Aiken ("Beyond Data and Model Parallelism for Deep Neural Networks"),
# table 3, in its order; the last one is that of section 8.4.
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
    """Return a network with the sizes of its papers, unless `options` gives others: `batch`, and for recurrent networks
    `steps`, `layers` and `hidden`.

    Raises BadInput for an unknown name.
    """
    if name not in NETWORKS:
        raise BadInput(f"unknown network {name!r}: give one of {', '.join(NETWORKS)}")
    return NETWORKS[name](**options)
