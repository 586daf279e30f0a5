"""The list of faults of benchmarks/planted_faults.py: each can be planted, or it has to follow its file."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.scripts import script

ROOT = Path(__file__).parents[2]
faults = script("planted_faults")
EACH = pytest.mark.parametrize("fault", faults.FAULTS, ids=lambda fault: fault.name)


@EACH
def test_a_fault_changes_one_line_of_python(fault: Any) -> None:
    before = (ROOT / fault.file).read_text()
    after = faults.planted(fault, before)
    assert ast.dump(ast.parse(after)) != ast.dump(ast.parse(before))
    pairs = zip(before.splitlines(), after.splitlines(), strict=True)
    assert sum(old != new for old, new in pairs) == 1


@EACH
def test_a_faults_first_tests_are_files_or_folders(fault: Any) -> None:
    """A test by name would run whatever the selection says."""
    assert fault.first
    assert all((ROOT / path).exists() for path in fault.first)


def test_names_are_different() -> None:
    assert len({fault.name for fault in faults.FAULTS}) == len(faults.FAULTS)


@pytest.mark.parametrize("text", ["nothing of it", "twice(twice("])
def test_a_fault_that_does_not_fit_its_file_is_told_in_one_line(text: str) -> None:
    fault = replace(faults.FAULTS[0], old="twice(")
    with pytest.raises(faults.Broken, match=rf"^{fault.name}: {fault.file} has [02] times, not once: twice\($"):
        faults.planted(fault, text)


@pytest.mark.parametrize("name", ["tests/a.py::b@alone", "tests/a.py::b@tests/a.py", "tests/a.py::b"])
def test_a_group_is_no_part_of_a_tests_name(name: str, tmp_path: Path) -> None:
    tree = faults.Tree(tmp_path, "", None, 1.0)
    cache = tmp_path / ".pytest_cache/v/cache/lastfailed"
    assert tree.failed == []
    cache.parent.mkdir(parents=True)
    cache.write_text(f'{{"{name}": true, "tests/c.py::d[x@y]": true}}')
    assert tree.failed == ["tests/a.py::b", "tests/c.py::d[x@y]"]
