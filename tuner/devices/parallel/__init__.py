"""Brings our thread pool for compiled kernels (`pool.c` says why), which is compiled once and then given to every
library. Start at `pool_library` and `Pool`; `stage` is how networks run groups of kernels on parts of its threads."""

from __future__ import annotations

from board_agent.pool import Pool
from tuner.devices.parallel.pool import PATTERN, open_pool, open_pools, pool_library

__all__ = ["PATTERN", "Pool", "open_pool", "open_pools", "pool_library"]
