"""Describes every command and option in Markdown, as the commands themselves define them. Start at `page`.

`python -m tuner.cli.reference > docs/options.md` writes the manual's page of options with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tuner.cli.examples import examples_of
from tuner.cli.main import root

_HEAD = """# Every option

Written by `python -m tuner.cli.reference > docs/options.md`.

Exit status of every command: 0 done, 2 bad input or usage, 3 nothing could be measured, 4 a result failed verification,
130 interrupted (all that was measured is kept).
"""


def page() -> str:
    """Return the whole text of docs/options.md."""
    return f"{_HEAD}\n{reference().rstrip()}\n"


def reference() -> str:
    """Return all commands with their options, defaults and examples. A group comes before its commands."""
    return "\n".join(_described("tune", root()))


def _described(path: str, command: Any) -> Iterator[str]:
    inner = getattr(command, "commands", None)
    if inner is not None:
        yield f"## {path}\n\n{command.help or ''}\n"
        yield from _table(command)
        yield from _examples(command)
        for name, sub in inner.items():
            yield from _described(f"{path} {name}", sub)
        return
    words = [a.metavar or a.name.upper() for a in command.params if a.param_type_name == "argument"]
    yield f"{'#' * (1 + path.count(' '))} {path}\n"
    yield f"`{' '.join([path, *words, '[OPTIONS]'])}`\n\n{command.help or ''}\n"
    yield from _table(command)
    yield from _examples(command)


def _table(command: Any) -> Iterator[str]:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option"]
    if not command.params:
        return
    yield "| | | default |\n|---|---|---|"
    for argument in arguments:
        yield _row(argument.metavar or argument.name.upper(), argument)
    for option in options:
        names = ", ".join([*option.opts, *option.secondary_opts])
        yield _row(names if option.is_flag else f"{names} {option.metavar or ''}".strip(), option)
    yield ""


def _examples(command: Any) -> Iterator[str]:
    yield "\n".join(("```sh", *examples_of(command), "```", ""))


def _row(name: str, param: Any) -> str:
    text = " ".join((param.help or "").split()).replace("|", "\\|")
    default = param.default
    nothing = default is False or default in (None, (), [], "")
    shown = "" if nothing or param.required or callable(default) else f"`{default}`"
    return f"| `{name}` | {text} | {'needed' if param.required else shown} |"


if __name__ == "__main__":
    print(page(), end="")
