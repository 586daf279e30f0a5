"""The contract of a schedule template, layouts, and the registry. A new template is one file and one line in
`templates/__init__.py` (or a plugin: `tune --plugin`, the entry point group `edgetune.templates`).

A template turns (workload, target, config) into a scheduled PrimFunc. Those of a convolution or a dense layer
(`AnchorTemplate`) have the parameters data, weight, then one buffer per operand of the epilogue in order (bias, add),
then the output. Data, "add" operands and the output are in the template's layouts; weights and biases are packed once,
when a module is built, by `pack_weight` and `pack_bias`. What functions of other templates take is said by their
operators (templates/operator.py).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from tvm import tirx
from tvm.target import Target

from templates.registry import Registry
from templates.space import SearchSpace, Space
from tuning_db.record import Config, Workload


@dataclass(frozen=True)
class Layout:
    """How an activation lies in memory. block == 0: plain (NCHW, or NC). Otherwise NCHW{block}c:
    (N, ceil(C/block), H, W, block), the last block filled up with arbitrary finite values."""

    block: int = 0

    def shape(self, plain: Sequence[int]) -> tuple[int, ...]:
        if not self.block:
            return tuple(plain)
        n, c, h, w = plain
        return n, -(-c // self.block), h, w, self.block

    def pack(self, array: np.ndarray) -> np.ndarray:
        """From plain to this layout, zero-filled."""
        if not self.block:
            return np.ascontiguousarray(array)
        n, c, h, w = array.shape
        blocks = -(-c // self.block)
        padded = np.pad(array, ((0, 0), (0, blocks * self.block - c), (0, 0), (0, 0)))
        return np.ascontiguousarray(padded.reshape(n, blocks, self.block, h, w).transpose(0, 1, 3, 4, 2))

    def unpack(self, array: np.ndarray, channels: int) -> np.ndarray:
        """From this layout to plain, keeping the first `channels` channels."""
        if not self.block:
            return array
        n, blocks, h, w, v = array.shape
        return array.transpose(0, 1, 4, 2, 3).reshape(n, blocks * v, h, w)[:, :channels]


PLAIN = Layout()


@dataclass(frozen=True)
class Layouts:
    """Of what an anchor reads and of what it makes."""

    data: Layout
    out: Layout


class ScheduleError(ValueError):
    """A config that passed the constraints cannot be applied: the trial is `invalid`, with this message."""


class Template(ABC):
    """One way of computing and scheduling one operator on one kind of device."""

    name: str  # stable: it is stored in the database
    version: int = 1  # raise it when the same config gives another kernel
    op: str  # the Workload.op that it computes
    dtypes: tuple[str, ...] = ("float32",)  # of a Workload: how values are stored; sums are always float32
    exact: bool = True  # False: rounds differently from the direct algorithm (Winograd); can be forbidden by the user
    # The error that its results may have, where that is more than their dtype allows: it must be asked for by name.
    tolerance: float | None = None
    first_calls: int = 1  # that take longer than all later ones, and are not timed
    spreads_nan: bool = False  # a NaN reaches results that do not depend on it (Winograd: those of the same tile)

    @abstractmethod
    def space(self, workload: Workload, target: Target) -> Space | None:
        """The configs for this workload on this target; None where the template does not apply."""

    @abstractmethod
    def prim_func(self, workload: Workload, target: Target, config: Config) -> tirx.PrimFunc:
        """The scheduled function. Raises ScheduleError if the config cannot be applied."""


class AnchorTemplate(Template):
    """A template of an operator with a weight: a convolution or a dense layer, with its epilogue."""

    @abstractmethod
    def layouts(self, workload: Workload, target: Target) -> Layouts:
        """The layouts of data and output ("add" operands have the output's)."""

    @abstractmethod
    def pack_weight(self, workload: Workload, target: Target, config: Config, weight: np.ndarray) -> np.ndarray:
        """The weight (OIHW, or (out, in)) as the function reads it: laid out once, when a module is built."""

    def weight_key(self, workload: Workload, target: Target, config: Config) -> str:
        """Configs with equal keys share one packed weight: what of the config changes the result of `pack_weight`."""
        return config.key

    def pack_bias(self, workload: Workload, target: Target, bias: np.ndarray) -> np.ndarray:
        """A bias of one value per output channel as the function reads it (default: blocked like the output)."""
        block = self.layouts(workload, target).out.block
        if not block:
            return np.ascontiguousarray(bias)
        blocks = -(-bias.size // block)
        return np.pad(bias, (0, blocks * block - bias.size)).reshape(blocks, block)


_REGISTRY: Registry[Template] = Registry("template")


def register(template: Template) -> Template:
    """Make a template known under its name. Registering another object under the same name raises ValueError."""
    return _REGISTRY.add(template.name, template)


def template_named(name: str) -> Template:
    """Raises KeyError with the known names if there is none."""
    return _REGISTRY.named(name)


def anchor_template(name: str) -> AnchorTemplate:
    """As `template_named`, of a template that is known to be an anchor's."""
    template = template_named(name)
    assert isinstance(template, AnchorTemplate), f"{name} is no template of an operator with a weight"
    return template


def all_templates() -> list[Template]:
    """All that are registered, plugins' among them."""
    return _REGISTRY.all()


def context_of(workload: Workload) -> dict[str, float]:
    """A workload's own features: log2 of its sizes, for cost models that meet several workloads."""
    found = {}
    for name, value in workload.attrs.items():
        for i, number in enumerate(value if isinstance(value, list | tuple) else [value]):
            if isinstance(number, int | float):
                found[f"workload.{name}.{i}"] = math.log2(1 + abs(number))
    return found


def search_space(
    workload: Workload, target: Target, only: Sequence[str] | None = None, exact: bool = False
) -> SearchSpace | None:
    """The union of all templates' spaces for a workload, or None if none applies.

    `only`: names of templates to keep (without them, those with a tolerance of their own are left out); `exact`: leave
    out templates that round differently (Winograd).
    """
    spaces = tuple(_spaces(workload, target, only, exact))
    return SearchSpace(spaces, context_of(workload)) if spaces else None


def default_config(workload: Workload, target: Target) -> Config | None:
    """The config to use where nothing was measured: the first of `search_space`'s seeds, for which the spaces behind it
    need not be made; None where no template applies."""
    for space in _spaces(workload, target):
        for config in space.seed_configs():
            return config
    return None


def _spaces(
    workload: Workload, target: Target, only: Sequence[str] | None = None, exact: bool = False
) -> Iterator[Space]:
    """As `search_space` has them; each is made when it is asked for."""
    for template in all_templates():
        if (
            template.op != workload.op
            or workload.dtype not in template.dtypes
            or (only is not None and template.name not in only)
        ):
            continue
        if (exact and not template.exact) or (only is None and template.tolerance is not None):
            continue
        space = template.space(workload, target)
        if space is not None:
            yield space
