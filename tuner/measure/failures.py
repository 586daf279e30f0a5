"""One short line for whatever went wrong: TVM's errors carry whole programs, a dead process only a status."""

from __future__ import annotations

import re
import signal

LIMIT = 300
OUT_OF_MEMORY = "out of memory"
_TELLING = re.compile(r"\b\w*(Error|Exception)\b|[Cc]heck failed|LLVM ERROR|what\(\)|not supported")
_KILLED = re.compile(r"killed by (SIGKILL|signal 9)\b")
_COMPILER = re.compile(r"(^|\s)(fatal )?error: ")
_NOISE = re.compile(r'^(File "|Traceback|\^|~|#|@|\.\.\.|---|def |class |with |for |if |return |import |from )')


def last_meaningful_line(text: str) -> str:
    """The first line in which a compiler reports an error, else the last that names one, else the last that is not
    part of a traceback or a program; shortened."""
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if any(map(str.isalpha, line)) and not _NOISE.match(line)]
    reported = [line for line in lines if _COMPILER.search(line)]
    telling = reported[:1] or [line for line in lines if _TELLING.search(line)]
    line = (telling or lines or [""])[-1]
    return line if len(line) <= LIMIT else line[: LIMIT - 3] + "..."


def describe(error: BaseException, memory_bytes: int | None = None) -> str:
    """One line for an exception: its type and what its message says. `memory_bytes`: the limit it ran under."""
    if isinstance(error, MemoryError) or "std::bad_alloc" in str(error):
        limit = f" (limit {memory_bytes >> 20} MiB)" if memory_bytes is not None else ""
        return OUT_OF_MEMORY + limit
    kind, line = type(error).__name__, last_meaningful_line(str(error))
    text = line if line.startswith(kind) else f"{kind}: {line}" if line else kind
    return text if len(text) <= LIMIT else text[: LIMIT - 3] + "..."


def was_killed(message: str) -> bool:
    """Whether a process died of a signal that none sends itself by accident: somebody did, or the system for want of
    memory."""
    return _KILLED.search(message) is not None


def how_it_ended(status: int | None, log: str) -> str:
    """One line for a child that ended, from its wait status and the end of what it wrote to standard error."""
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
