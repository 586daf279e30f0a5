"""The command `tune`, before anything of it is imported: Start at `main`.

Importing takes a tenth of a second and more. An interrupt in that time has nothing to end, and shows no traceback.
"""

from __future__ import annotations

import os
import signal
from typing import NoReturn

_INTERRUPTED = 130


def main() -> NoReturn:
    """Import the commands and run the one that is asked for; exits with its status."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not for a job in the background of a shell
        signal.signal(signal.SIGINT, _end)
    from tuner.cli.main import main as run

    run()


def _end(_number: int, _frame: object) -> NoReturn:
    os._exit(_INTERRUPTED)
