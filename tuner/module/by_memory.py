"""Choose kernels by the memory that an inference needs at its peak: `Chooser.least`, or the fastest that keep a limit,
`Chooser.fastest`.

While layouts stay, `Problem` finds the best of all combinations. What values take depends on layouts alone. Other
layouts are tried for one operator after the other, and each trial lowers the network again.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from tvm.ir import Var

from templates.template import AnchorTemplate, Layouts, search_space, template_named
from tuner.errors import BadInput
from tuner.graph import OperatorStep
from tuner.graph.layout.choice import Choice
from tuner.graph.layout.peak import Kernels, Problem, size_of
from tuner.graph.layout.weights import Option, Options, Weighted, option_of, too_large
from tuner.module.footprint import Footprint, Lowering
from tuning_db.record import Workload
from tuning_db.store import Store

_log = logging.getLogger(__name__)

_ByWorkload = Mapping[Workload, Layouts | None]


@dataclass(frozen=True, eq=False)
class _Weightless:
    """A step without a weight that a template computes."""

    workload: Workload
    out: Var
    weight: None = None


class Chooser:
    """Chooses kernels for a network on one device that has the kernels `chosen` to begin with.

    Of every template the best config that is known is considered. Where a workspace decides, the template's first
    configs are as well. `exact` leaves out templates that round differently. Weights may take `most_weights` bytes.
    Raises BadInput if a config cannot be applied, DatabaseError if the store cannot be read.
    """

    def __init__(
        self,
        lowering: Lowering,
        chosen: Mapping[Var, Choice],
        store: Store | None,
        *,
        exact: bool = False,
        most_weights: int | None = None,
    ) -> None:
        steps: list[Weighted] = [
            _Weightless(step.workload, step.out) if isinstance(step, OperatorStep) else step
            for step in lowering.graph.tuned
        ]
        self._lowering, self._chosen, self._exact = lowering, chosen, exact
        self._most_weights = math.inf if most_weights is None else most_weights
        self._options = Options.of(steps, chosen, device=lowering.device, store=store, exact=exact)
        self._offered: dict[Workload, list[Option]] = {}
        for workload, now in self._options.now.items():
            self._offered[workload] = [now]
            self._offer(workload, self._options.others[workload])
        self._widened: set[Workload] = set()
        self._footprints: dict[tuple[Layouts | None, ...], tuple[int, Footprint]] = {}

    def least(self, most_bytes: int | None = None) -> dict[Var, Choice]:
        """Return the choices with some replaced, so that an inference needs as little memory as possible, and of equal
        ones the fastest. Raises BadInput if `most_bytes` is less, or if the weights are too large in any case."""
        found, peak = self._weighed(self._least()[1])
        before = self._lowering.footprint(self._chosen).peak
        _log.info("an inference needs %d bytes, with the fastest kernels %d", peak, before)
        if before <= peak and size_of(self._options.now) <= self._most_weights:
            found, peak = dict(self._chosen), before
        return found if most_bytes is None or peak <= most_bytes else self.fastest(most_bytes)

    def fastest(self, most_bytes: int) -> dict[Var, Choice]:
        """Return the choices with some replaced, so that an inference needs at most `most_bytes`, at the least cost in
        time.

        Raises BadInput that says the least possible if there are none, or if the weights are too large in any case.
        """
        kernels = self._problem(self._layouts(self._options.now)).fastest(most_bytes)
        if kernels is not None:
            found, peak = self._weighed(kernels)
            if peak <= most_bytes:
                return found
        problem, least = self._least()
        for kernels in (problem.fastest(most_bytes), least):
            if kernels is not None:
                found, peak = self._weighed(kernels)
                if peak <= most_bytes:
                    return found
        raise too_much(peak)

    def _weighed(self, kernels: Kernels) -> tuple[dict[Var, Choice], int]:
        """Return the choices with some kernels, and the peak of the network that has them."""
        choices = self._choices(kernels)
        return choices, self._lowering.footprint(choices).peak

    def _choices(self, kernels: Kernels) -> dict[Var, Choice]:
        return Options(self._options.alike, dict(kernels), {}).choices(self._chosen)

    def _offer(self, workload: Workload, options: Sequence[Option]) -> None:
        """Add kernels to those of a workload, each once."""
        known = {option.choice.config for option in self._offered[workload]}
        self._offered[workload] += [option for option in options if option.choice.config not in known]

    def _least(self) -> tuple[Problem, Kernels]:
        """Return the kernels with the least peak that is found, with the problem that has their layouts."""
        layouts = self._layouts(self._options.now)
        best = self._least_with(layouts)
        for workload, others in self._other_layouts().items():
            for other in others:
                trial = self._least_with({**layouts, workload: other})
                if trial is not None and (best is None or _rank(*trial) < _rank(*best)):
                    best, layouts = trial, {**layouts, workload: other}
        if best is None:
            raise too_large(sum(min(o.size for o in offered) for offered in self._offered.values()))
        return best

    def _least_with(self, layouts: _ByWorkload) -> tuple[Problem, Kernels] | None:
        """Return the kernels of some layouts with the least peak. While a workspace decides, the first configs of the
        templates that have it are considered as well."""
        while True:
            problem = self._problem(layouts)
            kernels = problem.least()
            if kernels is None:
                return None
            largest = problem.largest(kernels)
            deciding = {w for w, o in kernels.items() if problem.space(w, o) == largest > problem.others}
            if not deciding - self._widened:
                return problem, kernels
            for workload in deciding - self._widened:
                self._widened.add(workload)
                self._offer(workload, self._first(workload))

    def _first(self, workload: Workload) -> list[Option]:
        """Return the first configs of all templates as options."""
        device, alike = self._lowering.device, self._options.alike[workload]
        space = search_space(workload, device.target, exact=self._exact)
        configs = [] if space is None else space.seed_configs()
        return [option_of(Choice(config, "default"), alike, device) for config in configs]

    def _other_layouts(self) -> dict[Workload, list[Layouts | None]]:
        """Return the layouts that each workload's kernels offer besides those of its kernel now."""
        return {
            workload: list(dict.fromkeys(self._layouts_of(workload, option) for option in offered))[1:]
            for workload, offered in self._offered.items()
        }

    def _layouts(self, kernels: Kernels) -> dict[Workload, Layouts | None]:
        return {workload: self._layouts_of(workload, option) for workload, option in kernels.items()}

    def _layouts_of(self, workload: Workload, option: Option) -> Layouts | None:
        assert option.choice.config is not None
        template = template_named(option.choice.config.template)
        if not isinstance(template, AnchorTemplate):
            return None
        return template.layouts(workload, self._lowering.device.target)

    def _problem(self, layouts: _ByWorkload) -> Problem:
        """Return the problem of choosing among the kernels with some layouts."""
        offered = {
            w: [option for option in options if self._layouts_of(w, option) == layouts[w]]
            for w, options in self._offered.items()
        }
        first = {w: options[0] for w, options in offered.items()}
        key = tuple(layouts.values())
        if key not in self._footprints:
            self._footprints[key] = size_of(first), self._lowering.footprint(self._choices(first))
        weights, footprint = self._footprints[key]
        pairs = chain.from_iterable(((w, o.choice.config) for o in options) for w, options in offered.items())
        spaces = {(w, config): self._lowering.workspace(w, config) for w, config in pairs if config is not None}
        fixed = footprint.weights - weights + footprint.values
        return Problem(self._options.now, offered, spaces, fixed, footprint.others, self._most_weights)


def too_much(peak: int) -> BadInput:
    """Return the error for a network that needs so many bytes at least."""
    least = math.ceil(peak / 2**20 * 10) / 10
    return BadInput(f"an inference needs {least:.1f} MiB with its weights at least, above the limit: allow more")


def _rank(problem: Problem, kernels: Kernels) -> tuple[float, int, float]:
    return problem.peak(kernels), *problem.cost(kernels)
