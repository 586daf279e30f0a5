"""This plug-in of benchmarks/boards.py registers templates whose spaces are recorded ones.

`recorded/NAME` stands for the template NAME, which still defines the layouts of operands and the packing of weights.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tvm.target import Target

import templates
from templates.space import Space
from templates.template import AnchorTemplate, anchor_template, register
from tuner.measure.replay.recorded import ListedSpace, RecordedSpace
from tuner.measure.replay.runner import recorded
from tuning_db.record import Config, Workload

assert templates is not None  # imported for the templates that it registers

FOLDER = Path(__file__).with_name("spaces")
SPACES = [recorded.read(path) for path in sorted(FOLDER.glob(f"*.cpu1.znver5{recorded.SUFFIX}"))]
PREFIX = "recorded/"


def names() -> list[str]:
    """Return the names of the templates that are registered here."""
    return sorted({PREFIX + space.template for known in SPACES for space in known.spaces})


def original(config: Config) -> Config:
    """Return the config with the name of the template that it was recorded with."""
    return Config(config.template.removeprefix(PREFIX), config.knobs)


class _Recorded:
    name: str

    def space(self, workload: Workload, target: Target) -> Space | None:
        return _renamed(SPACES, workload, self.name)


def _renamed(known: list[RecordedSpace], workload: Workload, name: str) -> Space | None:
    for recorded_space in known:
        for space in recorded_space.space.spaces:
            if recorded_space.workload == workload and PREFIX + space.template == name:
                assert isinstance(space, ListedSpace)
                return replace(space, template=name, configs=tuple(Config(name, c.knobs) for c in space.configs))
    return None


def _made(name: str) -> AnchorTemplate:
    kind = type(anchor_template(name.removeprefix(PREFIX)))
    made: AnchorTemplate = type("Recorded", (_Recorded, kind), {"name": name})()
    return made


for _name in names():
    register(_made(_name))
