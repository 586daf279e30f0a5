"""Networks as shapes and flop only: those of papers 002 and 004. Start at `registry.network`."""

from __future__ import annotations

from tuner.studies.networks.operators import Network, NetworkOperator, Read
from tuner.studies.networks.registry import NETWORKS, network

__all__ = ["NETWORKS", "Network", "NetworkOperator", "Read", "network"]
