"""Compilers that a machine may lack: a test that needs one is skipped with what to install."""

from __future__ import annotations

import pytest

from tuner.devices.profiles import Profile, profile_named
from tuner.errors import BadInput
from tuner.measure.offline import Compiler, compilers_of


def compilers_or_skip(profile: Profile) -> list[Compiler]:
    try:
        return compilers_of(profile)
    except BadInput as error:
        pytest.skip(str(error))


def compiler_or_skip(profile: str, name: str) -> Compiler:
    return next(compiler for compiler in compilers_or_skip(profile_named(profile)) if compiler.name == name)
