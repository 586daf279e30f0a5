"""What `tune` understands, without running it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tuner.cli.main import root

ROOT = root()


def _commands(words: tuple[str, ...], command: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield words, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from _commands((*words, name), inner)


COMMANDS = dict(_commands((), ROOT))  # by their names, that of `tune` itself: ()


def parsed(words: list[str]) -> tuple[str, ...]:
    """The names of the command that these words run. Raises what `tune` would say of their usage."""
    command, context, path = ROOT, None, ()
    while True:
        context = command.make_context(path[-1] if path else "tune", list(words), parent=context)
        if not hasattr(command, "commands"):
            return path
        name, command, words = command.resolve_command(context, [*context._protected_args, *context.args])
        path = (*path, name)
