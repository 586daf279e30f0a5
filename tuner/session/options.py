"""Define what a caller of `tune` may choose. Start at `TuneOptions`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from templates.template import template_named
from tuner.errors import BadInput
from tuner.search import DEFAULT, check_searcher, make_searcher
from tuner.session.budget import Budget
from tuner.session.proposing import Making
from tuner.session.report import Progress
from tuner.session.sharing import LEASE_SECONDS


@dataclass(frozen=True)
class TuneOptions:
    """Options of a tuning session; all have defaults.

    `searcher` is a name, with options of its own (see tuner.search). `budget` limits the session (see
    tuner.session.budget). `exact` forbids templates that round differently from the direct algorithm. `only` names the
    templates that may be used (None: all). `progress` is called after every trial. For `lease_seconds` and `notice` see
    tuner.session.sharing.Sharing. `clock` returns seconds. `make` makes searchers.

    Raises BadInput for an unknown searcher or template.
    """

    searcher: str = DEFAULT
    budget: Budget = field(default_factory=Budget)
    seed: int = 0
    exact: bool = False
    only: Sequence[str] | None = None
    progress: Callable[[Progress], None] | None = None
    notice: Callable[[str], None] | None = None
    lease_seconds: float = LEASE_SECONDS
    clock: Callable[[], float] = time.monotonic
    make: Making = make_searcher

    def __post_init__(self) -> None:
        check_searcher(self.searcher)
        check_templates(self.only or ())


def check_templates(names: Sequence[str]) -> None:
    """Raise BadInput, with the known names, for a template that is not there."""
    for name in names:
        try:
            template_named(name)
        except KeyError as error:
            raise BadInput(str(error.args[0])) from None
