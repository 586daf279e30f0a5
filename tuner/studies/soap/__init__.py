"""Strategies say how every operator of a network is split and where its parts are (Jia, Zaharia and Aiken, "Beyond Data
and Model Parallelism for Deep Neural Networks", section 4). Start at `configs.PartConfig`.
"""

from __future__ import annotations

from tuner.studies.soap.configs import (
    PartConfig,
    Proposals,
    Strategy,
    configs_of,
    random_config,
    random_strategy,
    region_of,
    regions_of,
)
from tuner.studies.soap.files import devices_in, read_strategy, strategy_from, strategy_json, write_strategy

__all__ = [
    "PartConfig",
    "Proposals",
    "Strategy",
    "configs_of",
    "devices_in",
    "random_config",
    "random_strategy",
    "read_strategy",
    "region_of",
    "regions_of",
    "strategy_from",
    "strategy_json",
    "write_strategy",
]
