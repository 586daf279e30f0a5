"""Holds for all tests: an interrupt interrupts, however the tests were started, and nothing has a time limit."""

from __future__ import annotations

import signal

from hypothesis import settings


def pytest_configure() -> None:
    """A shell's background job ignores SIGINT, and its children inherit that: tests of interrupts would wait for
    ever."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    settings.register_profile("edgetune", deadline=None)  # machines are shared and noisy
    settings.load_profile("edgetune")
