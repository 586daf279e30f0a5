"""Hold the entry point of the command `tune`, which runs before anything of it is imported. Start at `main`.

The import takes a tenth of a second or more. An interrupt during the import has nothing to clean up, so the process
exits at once and shows no traceback.
"""

from __future__ import annotations

import os
import signal
from typing import NoReturn

_INTERRUPTED = 130


def main() -> NoReturn:
    """Import the commands, run the one that the command line asks for, and exit with its status."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell's background jobs ignore SIGINT
        signal.signal(signal.SIGINT, _end)
    from tuner.cli.main import main as run

    run()


def _end(_number: int, _frame: object) -> NoReturn:
    os._exit(_INTERRUPTED)
