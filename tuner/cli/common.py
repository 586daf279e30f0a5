"""This module has what all commands share: common options, the streams they write to, and checks of their arguments.

Start at `Output`, through which a command writes. Remarks and progress go to standard error. The result goes to
standard output, as text, or with --json as one object.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from enum import StrEnum
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from tuner.cli.completion import DEVICE_USAGES, DEVICES, SEARCHERS, VENDORS, one_of, several_of
from tuner.cli.progress import Display
from tuner.cli.terminal import console, fitted
from tuner.errors import BadInput, choices

if TYPE_CHECKING:
    from tuner.devices import Device

DEFAULT_DB = "edgetune.db"
DEFAULT_DEVICE = "cpu"
DEFAULT_LEASE = 60.0  # seconds
DTYPES = ("float32", "float16", "bfloat16")
INTEGERS = "uint8"  # as templates.integers calls it, which takes long to import
INTERRUPTED = 130
_SHOWN_LINES = 20  # of many bad lines, problems or dropped configs; --json has all

DeviceOption = Annotated[
    str,
    typer.Option(
        "--device",
        "-d",
        metavar="D",
        help=f"The device: {choices(DEVICE_USAGES)}.",
        autocompletion=one_of(DEVICES),
    ),
]
ThreadsOption = Annotated[
    int | None,
    typer.Option("--threads", min=1, help="Threads of the CPU (default: TVM_NUM_THREADS, or one a physical core)."),
]
DbOption = Annotated[
    str, typer.Option("--db", metavar="URL", help="The tuning database: a file, sqlite:///FILE or postgresql://...")
]
SearcherOption = Annotated[
    str | None,
    typer.Option(
        "--searcher",
        metavar="NAME[:OPTION=VALUE,...]",
        help="How configs are chosen (default: auto, a portfolio of the others; `tune replay --help` lists them).",
        autocompletion=one_of(SEARCHERS),
    ),
]
TrialsOption = Annotated[
    int | None, typer.Option("--trials", min=1, help="Try this many configs in all, those in the database included.")
]
MinutesOption = Annotated[
    float | None, typer.Option("--minutes", help="Tune for this long in all, what the database has had included.")
]
SeedOption = Annotated[int, typer.Option("--seed", min=0, help="Same seed, same proposals.")]
LeaseOption = Annotated[
    float,
    typer.Option(
        "--lease",
        min=1.0,
        metavar="SECONDS",
        help="Other runs on this device and database take over this one's task when it is silent for so long.",
    ),
]
ExactOption = Annotated[
    bool, typer.Option("--no-winograd", help="Use only kernels that round like the direct algorithm.")
]
PluginOption = Annotated[
    list[str] | None,
    typer.Option("--plugin", metavar="MODULE", help="A module, or a .py file, that registers templates or searchers."),
]
RayOption = Annotated[
    str | None,
    typer.Option(
        "--ray", metavar="ADDRESS", help="Build and search on a Ray cluster: HOST:PORT, or auto (this machine's)."
    ),
]
MemoryOption = Annotated[
    int | None,
    typer.Option("--memory", metavar="MIB", min=1, help="What a GPU may hold of a network (default: all it has)."),
]
MaxWeightsOption = Annotated[
    str | None,
    typer.Option("--max-weights", metavar="SIZE", help="What the weights may take, such as 60MB or 500KB."),
]
MaxMemoryOption = Annotated[
    str | None,
    typer.Option("--max-memory", metavar="SIZE", help="What an inference may take at its peak, weights included."),
]
VendorOption = Annotated[
    str,
    typer.Option(
        "--vendor",
        metavar="NAME,...",
        help="Let other libraries' kernels compete: onnxruntime, onednn, clblast.",
        autocompletion=several_of(VENDORS),
    ),
]
TemplateOption = Annotated[
    list[str] | None, typer.Option("--template", metavar="NAME", help="Use only this template (may be repeated).")
]
DtypeOption = Annotated[
    str,
    typer.Option(
        "--dtype",
        help="How values are stored: float32, or float16 on a GPU or an ARM CPU with asimdhp. GPUs sum in float32. "
        "bfloat16 stores float32 and multiplies in bfloat16, on a CPU with dot products of it.",
        autocompletion=one_of(DTYPES),
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="One JSON object on standard output at the end, all else on standard error.")
]


class Preset(StrEnum):
    """Presets that say how thoroughly to search. tuner.session.budget has their limits."""

    QUICK = "quick"
    NORMAL = "normal"
    EXHAUSTIVE = "exhaustive"


PresetOption = Annotated[
    Preset | None,
    typer.Option("--preset", help="How thoroughly to search (default: normal, without --trials and --minutes)."),
]


class Objective(StrEnum):
    """What kernels are chosen by when a module is built. tuner.module.builder has their meaning."""

    LATENCY = "latency"
    MEMORY = "memory"
    SIZE = "size"


ObjectiveOption = Annotated[
    Objective,
    typer.Option(
        "--objective",
        help="latency: the fastest kernels; memory: with the least memory at an inference's peak, weights included; "
        "size: with the smallest weights; of equal ones the fastest.",
    ),
]


class Output:
    """The streams that one command writes to.

    Use it in a `with` statement. Inside it, under --json, whatever a library or a child process prints on standard
    output goes to standard error.
    """

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json
        self._console = console(sys.stdout)
        self._remarks = console(sys.stderr)
        self._display = Display(self._remarks)
        self._stdout_fd: int | None = None

    def __enter__(self) -> Self:
        if self.as_json:
            sys.stdout.flush()
            self._stdout_fd = os.dup(1)
            os.dup2(2, 1)
        self._display.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._display.__exit__(kind, error, at)
        if self._stdout_fd is not None:
            sys.stdout.flush()
            os.dup2(self._stdout_fd, 1)
            os.close(self._stdout_fd)
            self._stdout_fd = None

    def remark(self, text: str) -> None:
        """Print one line on standard error. Any thread may call this."""
        with self._display.aside():
            self._remarks.print(text, highlight=False, soft_wrap=True)

    def remark_some(self, lines: Sequence[str]) -> None:
        """Print the first of many lines on standard error, and how many more there are."""
        for line in lines[:_SHOWN_LINES]:
            self.remark(line)
        if len(lines) > _SHOWN_LINES:
            self.remark(f"... and {len(lines) - _SHOWN_LINES} more")

    def show(self, what: RenderableType) -> None:
        """Print text or a table, as part of the result for a person. Under --json it goes to standard error."""
        shown_on = self._remarks if self.as_json else self._console
        with self._display.aside():
            if isinstance(what, str):
                shown_on.print(what, highlight=False, soft_wrap=True)
            elif isinstance(what, Table) and shown_on.is_terminal:
                table, left_out = fitted(what, shown_on.width)
                shown_on.print(table)
                if left_out:
                    advice = "a wider terminal, a file and --json have them"
                    shown_on.print(Text(f"left out: {', '.join(left_out)}; {advice}", style="dim"))
            else:
                shown_on.print(what)

    def result(self, value: dict[str, Any]) -> None:
        """Print the result for a program as JSON, or do nothing without --json. A command calls this once, last."""
        if self.as_json:
            text = json.dumps(value, default=str)
            assert self._stdout_fd is not None
            sys.stdout.flush()
            with os.fdopen(os.dup(self._stdout_fd), "w") as stdout:
                stdout.write(text + "\n")


def seconds_of(minutes: float | None, option: str = "--minutes") -> float | None:
    """Convert an option's minutes to seconds; None stays None. Raises BadInput unless they are positive and finite."""
    if minutes is None:
        return None
    if not 0 < minutes < float("inf"):
        raise BadInput(f"{option} must be a positive number, not {minutes:g}")
    return minutes * 60


def import_plugins(given: Sequence[str]) -> tuple[str, ...]:
    """Import the modules of --plugin and of the entry points `edgetune.templates`, and return their names.

    The modules register templates as they are imported. The folder of a .py file is appended to the module path, so no
    file in it replaces another module. Raises BadInput for a module that cannot be imported, for a file that cannot be
    read, and for a file whose name belongs to another module.
    """
    files = {Path(item).stem: Path(item) for item in given if item.endswith(".py")}
    for path in files.values():
        sys.path.append(str(check_file(path, "a Python file that registers templates or searchers").resolve().parent))
    names = [entry.module for entry in entry_points(group="edgetune.templates")]
    names += [Path(item).stem if item.endswith(".py") else item for item in given]
    for name in names:
        try:
            module = import_module(name)
        except Exception as error:  # user code may raise anything: the message names the plug-in
            raise BadInput(f"--plugin {name}: cannot be imported: {type(error).__name__}: {error}") from error
        if name in files and Path(module.__file__ or "").resolve() != files[name].resolve():
            raise BadInput(f"--plugin {files[name]}: there is another module {name!r}; give the file another name")
    return tuple(names)


def threads_text(count: int) -> str:
    """Return a number of threads in words, such as "1 thread"."""
    return f"{count} thread{'' if count == 1 else 's'}"


def with_memory(devices: Sequence[Device], mebibytes: int | None) -> list[Device]:
    """Return the devices with their memory limited to `mebibytes`. The host has no limit and stays as it is."""
    if mebibytes is None:
        return list(devices)
    return [
        d if d.memory_bytes is None else replace(d, memory_bytes=min(d.memory_bytes, mebibytes << 20)) for d in devices
    ]


_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}


def size_asked(option: str, text: str | None) -> int | None:
    """Return the bytes that the text of an option says, such as 60MB, or None where it is not given. Raises BadInput
    for anything else."""
    if text is None:
        return None
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", text)
    if found is None or found[2].upper() not in _UNITS:
        raise BadInput(f"{option} {text!r}: is no size; give one such as 60MB, 500KB or 64MiB")
    return int(float(found[1]) * _UNITS[found[2].upper()])


def refuse_boards(devices: Sequence[Device]) -> None:
    """Raises BadInput if a device is on a board, and is named behind one of this machine."""
    for device in devices:
        if device.kind.is_remote:
            raise BadInput(
                f"device {device.name}: a network is on devices of one machine: name devices of the board alone, such "
                "as board:NAME/opencl:0,cpu"
            )


def templates_asked(plugins: Sequence[str] | None, vendors: str) -> tuple[str, ...]:
    """Return the modules of --plugin, and the modules that let the libraries of --vendor compete.

    Raises BadInput for a library that is unknown or not installed.
    """
    names = split_list(vendors)
    if not names:
        return tuple(plugins or ())
    from tuner.vendors import open_vendor

    return (*(plugins or ()), *map(open_vendor, names))


def check_dtype(dtype: str, known: Sequence[str] = DTYPES) -> str:
    """Return `dtype`. Raises BadInput unless it names a type that values can be stored in."""
    if dtype not in known:
        raise BadInput(f"unknown dtype {dtype!r} (known: {', '.join(known)})")
    return dtype


def check_file(path: Path, what: str) -> Path:
    """Return `path`. Raises BadInput unless it is a file that can be read; `what` says which file is needed."""
    if not path.is_file():
        raise BadInput(f"{path}: {'is a folder, not a file' if path.is_dir() else 'no such file'}; give {what}")
    if not os.access(path, os.R_OK):
        raise BadInput(f"{path}: cannot be read: permission denied")
    return path


def check_parent_writable(path: Path) -> Path:
    """Return `path`. Raises BadInput unless something can be created at it. Creates nothing."""
    parent = path.absolute().parent
    if not parent.is_dir():
        raise BadInput(f"{path}: the folder {parent} does not exist; create it first")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise BadInput(f"{path}: the folder {parent} cannot be written to; choose another")
    return path


def split_list(text: str) -> list[str]:
    """Split a comma-separated option into its items, without blanks around them and without empty items."""
    return [item.strip() for item in text.split(",") if item.strip()]


def integers(text: str, option: str, count: Iterable[int]) -> list[int]:
    """Parse a comma-separated list of integers. Raises BadInput unless `count` has the number of them."""
    counts = list(count)
    try:
        values = [int(item) for item in text.split(",")]
    except ValueError:
        raise BadInput(f"{option} {text}: give whole numbers separated by commas") from None
    if len(values) not in counts:
        raise BadInput(f"{option} {text}: give {' or '.join(map(str, counts))} numbers, not {len(values)}")
    return values
