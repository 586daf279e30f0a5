"""What is made of the results of a bundle."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.board_agent.bundles import copied, manifest_of, on_the_device, rewritten
from tuner.errors import BadInput
from tuner.measure.boards.bundle import Results, read_results
from tuning_db.record import THROTTLED, FailureKind

Line = dict[str, Any]


@pytest.fixture(scope="module")
def measured(made_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle, with its results in "r.zip" beside it."""
    bundle = copied(made_bundle, tmp_path_factory.mktemp("measured"))
    done = on_the_device(bundle.name, "-o", "r.zip", cwd=bundle.parent)
    assert done.returncode == 0, done.stderr
    return bundle


def read_with(bundle: Path, change: Callable[[list[Line]], list[Line]]) -> Results:
    """Of lines that say something else."""

    def changed(files: dict[str, bytes]) -> None:
        lines = change([json.loads(line) for line in files["results.jsonl"].splitlines()])
        files["results.jsonl"] = "".join(json.dumps(line) + "\n" for line in lines).encode()

    return read_results(bundle, rewritten(bundle.with_name("r.zip"), "changed.zip", changed))


def test_a_device_without_a_clock_does_not_date_its_trials(measured: Path) -> None:
    made = datetime.fromtimestamp(manifest_of(measured)["made"], UTC)
    assert abs(made - datetime.now(UTC)) < timedelta(days=1)
    found = read_with(measured, lambda lines: [{**line, "at": 86400.0} for line in lines])
    assert {t.created for t in found.trials} == {made}
    later = made.timestamp() + 86400
    found = read_with(measured, lambda lines: [{**line, "at": later} for line in lines])
    assert {t.created for t in found.trials} == {made + timedelta(days=1)}


def test_what_was_throttled_is_marked(measured: Path) -> None:
    hot = [False]

    def every_other(line: Line) -> Line:
        if "candidate" not in line:
            return {**line, "reference": 1e-5} if "reference" in line else line
        hot.append(not hot[-1])
        return {**line, "throttled": "yes" if hot[-1] else ""}

    found = read_with(measured, lambda lines: list(map(every_other, lines)))
    assert [t.versions.get(THROTTLED) for t in found.trials] == ["yes" if h else None for h in hot[1:]]


@pytest.mark.parametrize(("end", "mark"), [(1.05, None), (0.92, None), (1.3, "drift"), (0.7, "drift")])
def test_what_was_measured_while_the_device_changed_is_marked(measured: Path, end: float, mark: str | None) -> None:
    def changing(lines: list[Line]) -> list[Line]:
        """The reference is measured in the middle, too."""
        lines = [line for line in lines if "reference" not in line]
        middle = len(lines) // 2
        seconds = [{"reference": s, "at": 0.0} for s in (1e-5, 1e-5, 1e-5 * end)]
        return [seconds[0], *lines[:middle], seconds[1], *lines[middle:], seconds[2]]

    found = read_with(measured, changing)
    marks = [t.versions.get(THROTTLED) for t in found.trials]
    assert (marks[0], marks[-1]) == (None, mark)
    assert found.remark is not None
    assert "10 us at the start" in found.remark


def test_the_reference_is_measured_at_the_start_and_at_the_end(measured: Path) -> None:
    order = list[str]()
    read_with(measured, lambda lines: [order.append(next(iter(line))) or line for line in lines])  # type: ignore[func-returns-value]
    assert (order[0], order[-1]) == ("reference", "reference")
    assert order.count("begun") == order.count("candidate") == len(manifest_of(measured)["candidates"])


def test_what_took_the_device_down_lost_it(measured: Path) -> None:
    lost = {"failed": {"lost": "twice"}, "outputs": []}
    found = read_with(measured, lambda lines: [{**line, **lost} if "candidate" in line else line for line in lines])
    assert {t.failure.kind for t in found.trials if t.failure is not None} == {FailureKind.DEVICE_LOST}
    assert not any(t.ok for t in found.trials)


@pytest.mark.parametrize("line", [{"outputs": ["0123"]}, {"outputs": []}, {"times": ["soon"]}])
def test_what_is_no_result_is_refused(measured: Path, line: Line) -> None:
    with pytest.raises(BadInput, match="not a result"):
        read_with(measured, lambda lines: [{**old, **line} if "candidate" in old else old for old in lines])


def test_a_bundle_of_another_version_is_refused(measured: Path) -> None:
    def older(files: dict[str, bytes]) -> None:
        manifest = json.loads(files["bundle/manifest.json"])
        files["bundle/manifest.json"] = json.dumps({**manifest, "format": 1}).encode()

    old = rewritten(measured, "old.pyz", older)
    with pytest.raises(BadInput, match="another version"):
        read_results(old, measured.with_name("r.zip"))
