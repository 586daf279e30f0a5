"""Finds the compilers that a profile needs, by name. A new compiler takes one file, and one line here."""

from __future__ import annotations

from collections.abc import Callable

from tuner.devices.profiles import Profile
from tuner.measure.offline.clang import Clang
from tuner.measure.offline.contract import Compiler
from tuner.measure.offline.nvrtc import Nvrtc
from tuner.measure.offline.ocloc import Ocloc

_COMPILERS: dict[str, Callable[[Profile], Compiler]] = {
    "clang": lambda profile: Clang(profile.extensions),
    "ocloc": lambda profile: Ocloc(profile.ocloc or ""),
    "nvrtc": lambda profile: Nvrtc(profile.architecture),
}


def compiler_named(name: str, profile: Profile) -> Compiler:
    """Return one of `profile.compilers`. Raises BadInput, with what to install, if it is missing."""
    return _COMPILERS[name](profile)


def compilers_of(profile: Profile) -> list[Compiler]:
    """Return all compilers of a profile. Raises BadInput, with what to install, if one of them is missing."""
    return [compiler_named(name, profile) for name in profile.compilers]
