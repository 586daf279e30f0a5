"""Networks that have only shapes and flop: those of Jia, Zaharia and Aiken, "Beyond Data and Model Parallelism for Deep
Neural Networks", and of Mirhoseini et al., "Device Placement Optimization with Reinforcement Learning". Start at
`registry.network`.
"""

from __future__ import annotations

from tuner.studies.networks.operators import Network, NetworkOperator, Read
from tuner.studies.networks.registry import NETWORKS, network

__all__ = ["NETWORKS", "Network", "NetworkOperator", "Read", "network"]
