"""Completes the values of options in a shell. Start at `one_of`, `several_of` and `check_shell`.

Completion must be quick, so names come from a file (`tuner.cli.names`). The registries would import TVM or
open drivers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tuner.cli.names import names_of, usages_of
from tuner.errors import BadInput

Completer = Callable[[str], list[str]]

SHELLS = ("bash", "zsh", "fish", "powershell", "pwsh")
ASKING = ("--install-completion", "--show-completion")

SEARCHERS = names_of("searchers")
NETWORKS = names_of("networks")
PROFILES = names_of("profiles")
CPUS = names_of("cpus")
VENDORS = names_of("vendors")
PEERS = names_of("peers")
# These are forms of device names. Only the drivers know which devices are here; `tune devices` asks them.
BUILT_FOR = names_of("devices")
DEVICES = (*BUILT_FOR, *names_of("remote_devices"))
ON_BOARDS = names_of("devices_on_boards")
# How a person writes them: opencl:N.
BUILT_FOR_USAGES = usages_of("devices")
DEVICE_USAGES = (*BUILT_FOR_USAGES, *usages_of("remote_devices"))
ON_BOARDS_USAGES = usages_of("devices_on_boards")


def one_of(names: Sequence[str]) -> Completer:
    """Return a completer for an option that takes one of the names."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return complete


def several_of(names: Sequence[str]) -> Completer:
    """Return a completer for names with commas between them. It completes the last to a name not given before it."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        given = before.split(",")
        return [f"{before}{comma}{name}" for name in names if name.startswith(last) and name not in given]

    return complete


def check_shell(words: Sequence[str]) -> None:
    """Raises BadInput if `words` ask for completion in the current shell and that shell cannot complete."""
    asked = next((word for word in words[:1] if word in ASKING), None)
    if asked is None:
        return
    from shellingham import ShellDetectionFailure, detect_shell

    try:
        shell, _ = detect_shell()
    except ShellDetectionFailure:
        shell = "(unknown)"
    if shell not in SHELLS:
        raise BadInput(
            f"{asked}: the shell that runs this, {shell}, cannot complete; run it in one of {', '.join(SHELLS)}, or "
            "let `_TUNE_COMPLETE=source_bash tune` write what one of them reads"
        )
