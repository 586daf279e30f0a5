"""Predicts what a strategy takes without running it (Jia, Zaharia and Aiken, "Beyond Data and Model Parallelism for
Deep Neural Networks", section 5). Start at `simulator.Simulator`.
"""

from __future__ import annotations

from tuner.studies.simulator.costs import CostModel, Roofline
from tuner.studies.simulator.simulator import Simulator
from tuner.studies.simulator.timeline import Timeline, chrome_trace

__all__ = ["CostModel", "Roofline", "Simulator", "Timeline", "chrome_trace"]
