"""The entry point `tune`: `main()` runs one command and turns every expected error into one line and an exit status.

Each command is one file beside this one. They import TVM inside their functions, so that help and usage errors come
at once. Exit status: 0 done, 2 bad input or usage, 3 nothing could be measured, 4 a result failed verification,
130 interrupted.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import signal
import sys
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import Annotated, Any, NoReturn

import typer

from templates.errors import TemplateFailed
from tuner.cli import board, bundle, db, pack
from tuner.cli.common import INTERRUPTED
from tuner.cli.completion import check_shell
from tuner.cli.examples import examples
from tuner.cli.terminal import visible
from tuner.errors import BadInput, TuneError
from tuner.versions import versions
from tuning_db.errors import DatabaseError

# A command is a file of this name beside this one, with `command` and `EXAMPLES`. `tune --help` has them in this order.
COMMANDS = (
    "doctor",
    "devices",
    "op",
    "quantize",
    "model",
    "plan",
    "build",
    "export",
    "run",
    "bench",
    "demo",
    "zoo",
    "replay",
    "report",
    "watch",
    "explain",
)
_EXPECTED = (TuneError, DatabaseError, TemplateFailed)
_LONGEST_LINE = 1000  # characters of an error; names in a user's files may have any length
_NEW_OBJECTS = 10_000  # new objects between two garbage collections; importing TVM makes a million that stay
# Typer bundles click or uses the installed one, depending on its version. This is the UsageError of the one it uses.
_UsageError = typer.BadParameter.__mro__[1]

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Make a CNN fast on the device it will run on: measure how each operator is best computed, keep every "
    "measurement, and build a module from the best.",
    epilog=examples(
        "tune doctor", "tune model resnet18.onnx --minutes 9", "tune build resnet18.onnx -o resnet18.tuned"
    ),
)


def _show_version(asked: bool) -> None:
    if asked:
        known = versions()
        print(f"edgetune {known['edgetune']}, TVM {known['tvm']}")
        raise typer.Exit


@app.callback()
def options(
    _: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_show_version, help="Show the versions of edgetune and TVM."),
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Say on standard error what is done, step by step, with times.")
    ] = False,
) -> None:
    """These are the options of `tune` itself."""
    if verbose:
        import logging

        logging.basicConfig(format="%(asctime)s.%(msecs)03d %(name)s: %(message)s", datefmt="%H:%M:%S")
        for package in ("tuner", "templates", "vision_ops", "tuning_db"):
            logging.getLogger(package).setLevel(logging.INFO)


for _name in COMMANDS:
    _module = import_module(f"tuner.cli.{_name}")
    app.command(_name, epilog=examples(*_module.EXAMPLES))(_module.command)
app.add_typer(db.app, name="db")
app.add_typer(board.app, name="board")
app.add_typer(bundle.app, name="bundle")
app.add_typer(pack.app, name="pack")


@cache
def root() -> Any:
    """Return click's group of all commands; making it takes a tenth of a second."""
    return typer.main.get_command(app)


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run `tune` with these arguments (default: the process's) and exit with its status."""
    gc.set_threshold(_NEW_OBJECTS)
    atexit.register(gc.freeze)  # else the interpreter's last collection walks all of TVM's objects again
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _interrupt)
    try:
        status = execute(list(sys.argv[1:] if argv is None else argv))
    except KeyboardInterrupt:
        status = INTERRUPTED
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command is done: nothing may interrupt Python's shutdown
    sys.exit(status)


_interrupted = [False]


def _interrupt(_number: int, _frame: object) -> NoReturn:
    """Raise KeyboardInterrupt, as Python's own handler does, and record it: imports may turn it into another error."""
    _interrupted[0] = True
    raise KeyboardInterrupt


def execute(argv: Sequence[str]) -> int:
    """Run one command and return its exit status; expected errors become one line on standard error.

    After an interrupt the status is 130, which typer returns for a KeyboardInterrupt.
    """
    if sys.stdout is None:  # it was closed before the start, as by >&-
        print("tune: standard output is closed", file=sys.stderr)
        return 2
    try:
        check_shell(argv)
        status = root().main(args=list(argv), prog_name="tune", standalone_mode=False)
        status = status if isinstance(status, int) else 0
        sys.stdout.flush()
    except Exception as error:
        # A library that calls Python from C++ makes another error of an interrupt, and we a BadInput of that.
        if _interrupted[0] and (isinstance(error, BadInput) or not isinstance(error, _EXPECTED)):
            return INTERRUPTED
        known = explain(error)
        if known is None:
            raise
        message, status = known
        if message:
            print(f"tune: {visible(message)}", file=sys.stderr)
        if "--json" in argv:
            _print_json_error(message, status)
        return status
    return status


def explain(error: Exception) -> tuple[str, int] | None:
    """Return one line and an exit status for an error that a user can cause, or None for a programming error."""
    if isinstance(error, TuneError):
        return _one_line(error), error.exit_status
    if isinstance(error, _UsageError):
        return _explain_usage(error), 2
    if isinstance(error, DatabaseError | TemplateFailed):
        return _one_line(error), 2
    if isinstance(error, MemoryError):
        return "there is not enough memory for this", 2
    if isinstance(error, OSError) and error.errno is not None:
        where = error.filename if error.filename is not None else "standard output or a file"
        return f"{where}: {error.strerror}", 2
    return None


def _explain_usage(error: Exception) -> str:
    message = " ".join(error.format_message().split()).replace("Value error, ", "")  # type: ignore[attr-defined]
    context = getattr(error, "ctx", None)
    if not message:  # no arguments at all: the help has been shown
        return ""
    return message if context is None else f"{message.rstrip('.')} (see {context.command_path} --help)"


def _one_line(error: Exception) -> str:
    line = " ".join(str(error).split())
    return line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]} ..."


def _print_json_error(message: str, status: int) -> None:
    with contextlib.suppress(OSError):  # a full disk behind standard output may be the very error
        os.write(1, json.dumps({"error": message, "exit_status": status}).encode() + b"\n")


if __name__ == "__main__":
    main()
