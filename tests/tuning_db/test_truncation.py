"""A log that was cut at any byte, plain or compressed, still gives every record before the cut."""

from __future__ import annotations

import lzma
import zlib
from pathlib import Path

import pytest

from tests.tuning_db.made import trial
from tuning_db import importing, logs
from tuning_db.logs import BadLine
from tuning_db.record import Trial
from tuning_db.store import Store, open_db

MADE = [trial(1), trial(2, None), trial(3, error=None), trial("ü", minute=7), trial((1, 2), 0.5)]
LINES = [logs.line_of(made) for made in MADE]
COMPRESSED = (".gz", ".xz")


def content_of(cut: bytes, suffix: str) -> bytes:
    """What the format lets one know of a file that was cut there."""
    if suffix == ".gz":
        return zlib.decompressobj(wbits=31).decompress(cut)
    return lzma.LZMADecompressor().decompress(cut) if suffix == ".xz" else cut


def whole(content: bytes) -> int:
    """How many records are complete in the beginning of a log; the last one may lack its newline."""
    lines = content.decode().split("\n")
    return sum(line == full for line, full in zip(lines, LINES, strict=False))


@pytest.fixture(params=["", ".gz", ".xz"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / f"log.jsonl{request.param}"
    assert logs.write_file(MADE, path) == len(MADE)
    return path


def test_every_truncation_yields_the_records_before_it(log: Path) -> None:
    everything = log.read_bytes()
    cut_file = log.with_name("cut" + log.suffix)
    seen = set()
    for size in range(len(everything) + 1):
        cut_file.write_bytes(everything[:size])
        with logs.opened(cut_file) as lines:
            items = list(logs.read(lines))
        good = [item for item in items if isinstance(item, Trial)]
        expected = whole(content_of(everything[:size], log.suffix))
        assert good == MADE[:expected], size
        bad = items[expected:]
        assert len(bad) <= 2, size  # the line that was cut, and that the file cannot be read on
        assert all(isinstance(item, BadLine) for item in bad), size
        if log.suffix in COMPRESSED and 0 < size < len(everything):
            assert bad, size  # the end is missing, and that is said
        seen.add(expected)
    assert seen == set(range(len(MADE) + 1))


def test_a_cut_log_fills_a_database_as_far_as_it_goes(log: Path, store: Store) -> None:
    everything = log.read_bytes()
    log.write_bytes(everything[:-5])
    expected = MADE[: whole(content_of(everything[:-5], log.suffix))]
    with logs.opened(log) as lines:
        report = importing.import_log(store, lines)
    assert (report.added, list(store.trials())) == (len(expected), expected)
    assert report.bad
    log.write_bytes(everything)
    with logs.opened(log) as lines:
        report = importing.import_log(store, lines)
    assert (report.added, report.known, report.bad) == (len(MADE) - len(expected), len(expected), [])


@pytest.mark.parametrize("suffix", COMPRESSED)
def test_no_damage_to_a_compressed_log_goes_unnoticed(tmp_path: Path, suffix: str) -> None:
    log = tmp_path / f"log{suffix}"
    logs.write_file(MADE, log)
    everything = log.read_bytes()
    told = 0
    for at in range(10, len(everything), 5):  # the first ten bytes of gzip's hold a date and the like
        log.write_bytes(everything[:at] + bytes([everything[at] ^ 0x55]) + everything[at + 1 :])
        with logs.opened(log) as lines:
            items = list(logs.read(lines))
        assert items == MADE or any(isinstance(item, BadLine) for item in items), at
        told += items != MADE
    assert told > 20


def test_compressed_logs_are_smaller_joined_like_text_and_the_same_for_the_same_trials(tmp_path: Path) -> None:
    for suffix in COMPRESSED:
        one, two = tmp_path / f"one{suffix}", tmp_path / f"two{suffix}"
        many = [trial(tile) for tile in range(200)]
        logs.write_file(many, one)
        logs.write_file(many, two)
        assert one.read_bytes() == two.read_bytes()
        assert len(one.read_bytes()) < sum(len(logs.line_of(t)) for t in many) / 5
        logs.write_file(MADE, two)
        joined = tmp_path / f"joined{suffix}"
        joined.write_bytes(one.read_bytes() + two.read_bytes())
        with logs.opened(joined) as lines, open_db(tmp_path / f"{suffix}.db") as store:
            assert importing.import_log(store, lines).bad == []
            assert list(store.trials()) == list(dict.fromkeys([*many, *MADE]))
