"""What continuous integration installs is what the project says it needs, and no address is in it."""

from __future__ import annotations

import tomllib

import pytest
from packaging.requirements import Requirement

from tests.selection import ROOT

LOCK = ROOT / "requirements.lock"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NEEDED = [*PROJECT["dependencies"], *(need for extra in PROJECT["optional-dependencies"].values() for need in extra)]


def locked() -> dict[str, str]:
    lines = [Requirement(line) for line in LOCK.read_text().splitlines() if line and not line.startswith("#")]
    return {line.name: str(line.specifier).removeprefix("==") for line in lines}


@pytest.mark.parametrize("need", NEEDED)
def test_every_requirement_is_locked_to_a_version_that_it_allows(need: str) -> None:
    requirement = Requirement(need)
    assert locked()[requirement.name] in requirement.specifier, f"write it again: its first lines say how ({LOCK})"


def test_it_names_no_registry() -> None:
    assert "://" not in LOCK.read_text()
