"""Define what a session is made of. Start at `Session`."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.measure.runner import Runner
from tuner.session.clock import SessionClock
from tuner.session.proposing import Proposer
from tuner.session.recorder import Recorder
from tuner.session.reporter import Reporter
from tuner.session.session_budget import SessionBudget
from tuner.session.sharing import Sharing


@dataclass(frozen=True)
class Session:
    """The parts of a session, which the search and the comparison share."""

    runner: Runner
    clock: SessionClock
    budget: SessionBudget
    sharing: Sharing
    proposer: Proposer
    recorder: Recorder
    reporter: Reporter
