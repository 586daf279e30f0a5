"""Placement that is learned (Mirhoseini et al., "Device Placement Optimization with Reinforcement Learning"). It needs
the extra `rl`. Start at `reinforce.learn`.

Importing this package raises BadInput where torch is not installed. Other modules import it only when it is asked for.
"""

from __future__ import annotations

from tuner.errors import BadInput

try:
    import torch  # noqa: F401
except ImportError as error:
    raise BadInput("learned placement needs torch: pip install 'edgetune[rl]'") from error

from tuner.studies.learned.groups import Groups, groups_of
from tuner.studies.learned.reinforce import Learned, Settings, learn

__all__ = ["Groups", "Learned", "Settings", "groups_of", "learn"]
