"""Turns whatever went wrong into one short line. TVM's errors carry whole programs, and a dead process leaves only its
status. Start at `describe`."""

from __future__ import annotations

import re
import signal
import traceback
from pathlib import Path

import tvm

LIMIT = 300
OUT_OF_MEMORY = "out of memory"
_TELLING = re.compile(r"\b\w*(Error|Exception)\b|[Cc]heck failed|LLVM ERROR|what\(\)|not supported")
_KILLED = re.compile(r"killed by (SIGKILL|signal 9)\b")
_COMPILER = re.compile(r"(^|\s)(fatal )?error: ")
_NOISE = re.compile(r'^(File "|Traceback|\^|~|#|@|\.\.\.|---|def |class |with |for |if |return |import |from )')


def last_meaningful_line(text: str) -> str:
    """Return the line of an error text that says most, shortened to LIMIT characters.

    This is the first line in which a compiler reports an error. Failing that, it is the last line that names an error,
    and failing that, the last line that belongs to no traceback or program.
    """
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if any(map(str.isalpha, line)) and not _NOISE.match(line)]
    reported = [line for line in lines if _COMPILER.search(line)]
    telling = reported[:1] or [line for line in lines if _TELLING.search(line)]
    line = (telling or lines or [""])[-1]
    return line if len(line) <= LIMIT else line[: LIMIT - 3] + "..."


def describe(error: BaseException, memory_bytes: int | None = None) -> str:
    """Describe an exception in one line: its type and what its message says. `memory_bytes` is the limit that it ran
    under."""
    if isinstance(error, MemoryError) or "std::bad_alloc" in str(error):
        limit = f" (limit {memory_bytes >> 20} MiB)" if memory_bytes is not None else ""
        return OUT_OF_MEMORY + limit
    kind, line = type(error).__name__, last_meaningful_line(str(error))
    text = line if line.startswith(kind) else f"{kind}: {line}" if line else kind
    return text if len(text) <= LIMIT else text[: LIMIT - 3] + "..."


def describe_with_place(error: BaseException, memory_bytes: int | None = None) -> str:
    """Describe an exception as `describe` does, and add the file and line of the innermost Python code outside of TVM
    and this package, as in "ValueError: no such loop (mine.py:60)"."""
    skipped = (str(Path(__file__).parent), *tvm.__path__, "<")
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(skipped)]
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return describe(error, memory_bytes)[: LIMIT - len(place)] + place


def was_killed(message: str) -> bool:
    """Tell whether a message says that SIGKILL ended a process. No process sends that signal to itself by accident:
    somebody killed it, or the system did for want of memory."""
    return _KILLED.search(message) is not None


def how_it_ended(status: int | None, log: str) -> str:
    """Describe in one line how a child process ended. `status` is its exit status (negative: a signal; None: not
    known), and `log` is the end of what it wrote to standard error."""
    if status is None:
        return "process was killed"
    if status < 0:
        number = -status
        known = number in set(signal.Signals)
        text = f"killed by {signal.Signals(number).name if known else f'signal {number}'}"
        said = last_meaningful_line(log) if number == signal.SIGABRT else ""
    else:
        text, said = f"process exited with status {status}", last_meaningful_line(log)
    return f"{text}: {said}"[:LIMIT] if said else text
