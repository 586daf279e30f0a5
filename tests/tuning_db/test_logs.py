"""Logs: exact both ways, tolerant of what is no trial, and idempotent."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import os
import tracemalloc
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.tuning_db.made import trial
from tests.tuning_db.strategies import trials
from tuning_db import importing, logs
from tuning_db.logs import BadLine
from tuning_db.record import Trial
from tuning_db.store import DatabaseError, Store, open_db

sharing = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)


def lines_of(made: list[Trial]) -> list[bytes]:
    out = io.StringIO()
    assert logs.write(made, out) == len(made)
    return out.getvalue().encode().splitlines(keepends=True)


@given(trials())
def test_a_line_decodes_to_the_trial_it_came_from(made: Trial) -> None:
    line = logs.line_of(made)
    assert "\n" not in line
    assert line.isascii()
    back = logs.trial_of(line)
    assert back == made
    assert logs.line_of(back) == line
    assert (back.workload.key, back.device.key, back.config.key) == (
        made.workload.key,
        made.device.key,
        made.config.key,
    )


@sharing
@given(st.lists(trials(), max_size=4))
def test_database_to_log_to_database_loses_nothing_and_twice_adds_nothing(store: Store, made: list[Trial]) -> None:
    store.add_many(made)
    everything = list(store.trials())
    exported = lines_of(everything)
    again = importing.import_log(store, exported)
    assert (again.added, again.known, again.bad) == (0, len(everything), [])
    assert lines_of(list(store.trials())) == exported


def test_a_log_fills_another_database_exactly(store: Store, tmp_path: Path) -> None:
    made = [trial(1), trial(2, None), trial(3, error=None)]
    store.add_many(made)
    with open_db(tmp_path / "other.db") as other:
        report = importing.import_log(other, lines_of(list(store.trials())))
        assert (report.added, report.known) == (3, 0)
        assert list(other.trials()) == made


def changed(**fields: Any) -> bytes:
    record = json.loads(logs.line_of(trial(1)))
    for name, value in fields.items():
        if value is ...:
            del record[name]
        else:
            record[name] = value
    return json.dumps(record).encode() + b"\n"


BAD = [
    (b"{\n", "not JSON"),
    (b"\xff\xfe\x00\n", "not UTF-8"),
    (b"[" * 100_000 + b"\n", "not JSON"),
    (b"17\n", "not a JSON object"),
    (b"{}\n", "this is not an edgetune log"),
    (changed(format="edgetune-trial/2"), "written by a newer edgetune: upgrade"),
    (changed(times=...), "'times' is missing"),
    (changed(times=[]), "either times or a failure"),
    (changed(times=["1e-3"]), "not a list of numbers"),
    (changed(times=[0.0]), "not all positive"),
    (changed(times=[1e-3, -1e-3]), "not all positive"),
    (changed(times=[10**400]), "too large"),
    (changed(failure={"kind": "run", "message": "x"}), "either times or a failure"),
    (changed(times=[], failure={"kind": "bored", "message": "x"}), "failure kind 'bored' is not known"),
    (changed(times=[], failure={"kind": "run"}), "'message' is missing"),
    (changed(workload={"op": "conv2d"}), "'epilogue' is missing"),
    (changed(workload={"op": 7, "attrs": {}, "epilogue": [], "dtype": "float32"}), "'op' has the wrong type"),
    (changed(workload={"op": "c", "attrs": {}, "epilogue": [1], "dtype": "float32"}), "not a list of strings"),
    (changed(workload={"op": "c", "attrs": {"a": None}, "epilogue": [], "dtype": "f"}), "cannot be part of a key"),
    (changed(device={"kind": "cpu", "family": "", "model": "m", "attrs": {}}), "the device family '' is empty"),
    (changed(config={"template": "a\nb", "knobs": {}}), "cannot be printed"),
    (changed(template_version=True), "'template_version' has the wrong type"),
    (changed(template_version=2**64), "64 bits"),
    (changed(seed=1.5), "'seed' has the wrong type"),
    (changed(error="small"), "neither a number"),
    (changed(created="yesterday"), "yesterday"),
    (changed(created="2026-01-01T00:00:00"), "no time zone"),
    (changed(created="0001-01-01T00:00:00+05:00"), "date value out of range"),
    (logs.line_of(trial(1)).encode().replace(b"0.002", b"NaN"), "NaN is not a JSON number"),
    (logs.line_of(trial(1)).encode()[:-40], "not JSON"),
]


@pytest.mark.parametrize(("line", "words"), BAD, ids=[words for _, words in BAD])
def test_a_bad_line_is_reported_with_number_and_reason_and_the_rest_is_imported(
    path: Path, line: bytes, words: str
) -> None:
    good = lines_of([trial(10), trial(11)])
    with open_db(path) as store:
        report = importing.import_log(store, [good[0], b"\n", line.rstrip(b"\n") + b"\n", good[1]])
        assert (report.added, report.known) == (2, 0)
        assert [bad.number for bad in report.bad] == [3]
        assert words in report.bad[0].reason
        assert [t.config["tile"] for t in store.trials()] == [10, 11]


@given(st.binary(max_size=60))
def test_no_bytes_break_the_reader(line: bytes) -> None:
    assert all(isinstance(item, BadLine) for item in logs.read([line]))


@given(st.data())
def test_no_damage_to_a_record_breaks_the_reader(data: st.DataObject) -> None:
    line = bytearray(logs.line_of(trial(1)).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        line[data.draw(st.integers(0, len(line) - 1))] = data.draw(st.integers(0, 255))
    for item in logs.read([bytes(line)]):
        assert isinstance(item, Trial | BadLine)


def test_fields_of_a_later_time_are_ignored() -> None:
    assert logs.trial_of(changed(weather="rain")) == trial(1)


def test_a_byte_order_mark_is_no_part_of_the_first_line() -> None:
    made = [trial(1), trial(2)]
    first, second = lines_of(made)
    assert list(logs.read([b"\xef\xbb\xbf" + first, second])) == made


def compressed(how: str, content: bytes) -> bytes:
    return {"plain": bytes, "gzip": gzip.compress, "xz": partial(lzma.compress, preset=0)}[how](content)


@pytest.mark.parametrize("how", ["plain", "gzip", "xz"])
def test_a_line_of_very_many_bytes_is_one_bad_line(tmp_path: Path, how: str) -> None:
    """It is not held in memory; the records before and behind it are read."""
    made = [trial(1), trial(2)]
    first, second = lines_of(made)
    path = tmp_path / "log"
    path.write_bytes(compressed(how, first + b" " * (8 * logs.MOST_LINE_BYTES) + b"\n" + second))
    tracemalloc.start()
    with logs.opened(path) as lines:
        found = list(logs.read(lines))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found == [made[0], BadLine(2, "it is longer than 16 MiB"), made[1]]
    assert peak < 6 * logs.MOST_LINE_BYTES


@pytest.mark.parametrize("how", ["plain", "gzip", "xz"])
@pytest.mark.parametrize("end", [b"", b"\n"])
def test_lines_are_the_same_however_they_are_stored(tmp_path: Path, how: str, end: bytes) -> None:
    wanted = [b"", b"a", b"b" * 200_000, b"", b"c"]
    (tmp_path / "log").write_bytes(compressed(how, b"\n".join(wanted) + end))
    with logs.opened(tmp_path / "log") as lines:
        assert list(lines) == wanted


def test_a_file_appears_complete_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "log.jsonl"
    assert logs.write_file([trial(1)], target) == 1
    before = target.read_bytes()

    def broken() -> Any:
        yield trial(2)
        raise DatabaseError("damaged")

    with pytest.raises(DatabaseError):
        logs.write_file(broken(), target)
    assert target.read_bytes() == before
    assert os.listdir(tmp_path) == ["log.jsonl"]
