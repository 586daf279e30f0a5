"""The contract of a schedule template, layouts, and the registry of templates. Start at `Template`.

A new template is one file and one line in `templates/builtin.py`, or a plugin (`tune --plugin`, the entry point group
`edgetune.templates`). A template turns (workload, target, config) into a scheduled PrimFunc. That of an
`AnchorTemplate` has the parameters data, weight, one buffer per operand of the epilogue in order (bias, add), and the
output. Data, "add" operands and the output are in the template's layouts. Weights and biases are packed once, when a
module is built, by `pack_weight` and `pack_bias`. For other templates the operator says what the function takes
(templates/operator.py).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from tvm import tirx
from tvm.target import Target

from templates.errors import TemplateFailed
from templates.registry import Registry
from templates.space import SearchSpace, Space
from tuning_db.record import Config, Workload, tolerance_of

_T = TypeVar("_T")
_RESULT_ROUNDED = 1e-3  # the tolerance of a result that is rounded once, to a half (by 2^-11 of the value)


@dataclass(frozen=True)
class Layout:
    """How an activation lies in memory.

    If `block` is 0 the layout is plain (NCHW, or NC). Otherwise it is NCHW{block}c, that is
    (N, ceil(C/block), H, W, block), and the last block is filled up with arbitrary finite values.
    """

    block: int = 0

    def shape(self, plain: Sequence[int]) -> tuple[int, ...]:
        if not self.block:
            return tuple(plain)
        n, c, h, w = plain
        return n, -(-c // self.block), h, w, self.block

    def pack(self, array: np.ndarray) -> np.ndarray:
        """Convert an array from the plain layout to this one. The last block is filled up with zeros."""
        if not self.block:
            return np.ascontiguousarray(array)
        n, c, h, w = array.shape
        blocks = -(-c // self.block)
        padded = np.pad(array, ((0, 0), (0, blocks * self.block - c), (0, 0), (0, 0)))
        return np.ascontiguousarray(padded.reshape(n, blocks, self.block, h, w).transpose(0, 1, 3, 4, 2))

    def unpack(self, array: np.ndarray, channels: int) -> np.ndarray:
        """Convert an array from this layout to the plain one and keep its first `channels` channels."""
        if not self.block:
            return array
        n, blocks, h, w, v = array.shape
        return array.transpose(0, 1, 4, 2, 3).reshape(n, blocks * v, h, w)[:, :channels]


PLAIN = Layout()


@dataclass(frozen=True)
class Layouts:
    """The layout of the data that an anchor reads, and that of its output."""

    data: Layout
    out: Layout


class ScheduleError(ValueError):
    """The error that is raised if a config cannot be applied though it meets the constraints.

    The trial is then `invalid`, with this message.
    """


class Template(ABC):
    """A schedule template, which computes and schedules one operator on one kind of device. A search sets its knobs."""

    name: str  # stable: it is stored in the database
    version: int = 1  # raise it when the same config gives another kernel
    op: str  # the Workload.op that the template computes
    dtypes: tuple[str, ...] = ("float32",)  # values of Workload.dtype, in which data is stored
    exact: bool = True  # False: rounds differently from the direct algorithm (Winograd); can be forbidden by the user
    # The tolerance of the results, if it exceeds that of their dtype. Such a template must be asked for by name.
    tolerance: float | None = None
    first_calls: int = 1  # how many calls take longer than all later ones; they are not timed
    sums_halves: bool = False  # whether products of halves are summed in half precision; see `tolerance_with`
    spreads_nan: bool = False  # whether a NaN reaches results that do not depend on it (Winograd: those of its tile)

    @abstractmethod
    def space(self, workload: Workload, target: Target) -> Space | None:
        """Return the space of configs for this workload on this target, or None if the template does not apply."""

    @abstractmethod
    def prim_func(self, workload: Workload, target: Target, config: Config) -> tirx.PrimFunc:
        """Return the scheduled function. Raises ScheduleError if the config cannot be applied."""

    def leads(self, workload: Workload, target: Target) -> bool:
        """Tell whether its space comes before those of templates that do not lead, so that its first seed is what an
        operator gets where nothing was measured. Templates of the same kind are in the order of their names."""
        del workload, target
        return False

    def spread(self, workload: Workload, target: Target, config: Config) -> Config:
        """Return a config like `config`, which was the best with another number of threads, that gives work to all
        threads of the target.

        By default it is the same config.
        """
        del workload, target
        return config


class AnchorTemplate(Template):
    """A template that computes an operator with a weight (a convolution or a dense layer) with its epilogue."""

    @abstractmethod
    def layouts(self, workload: Workload, target: Target) -> Layouts:
        """Return the layouts of data and output. "add" operands have the output's layout."""

    @abstractmethod
    def pack_weight(self, workload: Workload, target: Target, config: Config, weight: np.ndarray) -> np.ndarray:
        """Pack a weight (OIHW, or (out, in)) as the function reads it. This is done once, when a module is built."""

    def weight_key(self, workload: Workload, target: Target, config: Config) -> str:
        """Return a key of what in the config changes `pack_weight`. Configs with equal keys share one packed weight."""
        return config.key

    def pack_bias(self, workload: Workload, target: Target, bias: np.ndarray) -> np.ndarray:
        """Pack a bias, or another operand with one value per output channel, as the function reads it.

        By default it is blocked like the output.
        """
        return in_blocks(bias, self.layouts(workload, target).out.block)


def in_blocks(values: np.ndarray, block: int) -> np.ndarray:
    """Return values of channels as (blocks, lanes), filled up with zeros, or as they are if `block` is 0."""
    if not block:
        return np.ascontiguousarray(values)
    blocks = -(-values.size // block)
    return np.pad(values, (0, blocks * block - values.size)).reshape(blocks, block)


_REGISTRY: Registry[Template] = Registry("template", "templates.builtin")


def register(template: Template) -> Template:
    """Register a template under its name. Raises ValueError if another object is registered under this name, and
    TypeError for a class in place of an instance."""
    if isinstance(template, type):
        raise TypeError(f"register an instance of the template: register({template.__name__}())")
    return _REGISTRY.add(template.name, template)


def template_named(name: str) -> Template:
    """Return the template of this name. Raises KeyError with the known names if there is none."""
    return _REGISTRY.named(name)


def tolerance_with(name: str, dtype: str) -> float:
    """Return the largest error that a correct kernel of the template of this name may have, relative to the largest
    value of the result. It is that of the dtype, unless the template rounds only results to halves. Raises KeyError as
    `template_named` does."""
    if dtype != "float16" or template_named(name).sums_halves:
        return tolerance_of(dtype)
    return _RESULT_ROUNDED


def anchor_template(name: str) -> AnchorTemplate:
    """Return the template of this name, as `template_named` does. It must be an `AnchorTemplate`."""
    template = template_named(name)
    assert isinstance(template, AnchorTemplate), f"{name} is no template of an operator with a weight"
    return template


def all_templates() -> list[Template]:
    """Return all registered templates, including those of plugins, sorted by name."""
    return _REGISTRY.all()


def context_of(workload: Workload) -> dict[str, float]:
    """Return a workload's own features, log2(1 + size) of each of its sizes, for cost models of several workloads."""
    found = {}
    for name, value in workload.attrs.items():
        for i, number in enumerate(value if isinstance(value, list | tuple) else [value]):
            if isinstance(number, int | float):
                found[f"workload.{name}.{i}"] = math.log2(1 + abs(number))
    return found


def search_space(
    workload: Workload, target: Target, only: Sequence[str] | None = None, exact: bool = False
) -> SearchSpace | None:
    """Return the union of all templates' spaces for a workload, or None if no template applies.

    `only` names the templates to keep; if it is None, templates with a tolerance of their own are left out. `exact`
    leaves out templates that round differently from the direct algorithm (Winograd). Raises TemplateFailed.
    """
    spaces = tuple(_spaces(workload, target, only, exact))
    return SearchSpace(spaces, context_of(workload)) if spaces else None


def default_config(workload: Workload, target: Target) -> Config | None:
    """Return the config to use where nothing was measured, or None if no template applies.

    It is the first seed config of `search_space`. Spaces after the one that it belongs to are not built. Raises
    TemplateFailed.
    """
    for space in _spaces(workload, target):
        for config in space.seed_configs():
            return config
    return None


def _spaces(
    workload: Workload, target: Target, only: Sequence[str] | None = None, exact: bool = False
) -> Iterator[Space]:
    """Yield the spaces that `search_space` unites. Each is built only when the iteration reaches it."""
    usable = [
        template
        for template in all_templates()
        if template.op == workload.op
        and workload.dtype in template.dtypes
        and (template.name in only if only is not None else template.tolerance is None)
        and (template.exact or not exact)
    ]
    for template in sorted(usable, key=lambda template: not _asked(template, template.leads, workload, target)):
        space = _asked(template, template.space, workload, target)
        if space is not None:
            yield space


def _asked(template: Template, question: Callable[[Workload, Target], _T], workload: Workload, target: Target) -> _T:
    """Return what a template answers. Raises TemplateFailed if it fails."""
    try:
        return question(workload, target)
    except Exception as error:
        raise TemplateFailed(template.name, error) from error
