"""What the README shows works: its commands exist, the main job runs (on a smaller network, with a smaller budget)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.manual import PAGES, README, ROOT, Reader, blocks


def test_its_first_command_runs_the_demo_and_its_second_the_tests():
    demo, tests, *_ = (block.text for block in blocks(README) if block.language == "sh")
    assert "pip install -e . &&" in demo
    assert demo.strip().endswith("tune demo")
    assert "pip install -e '.[dev]'" in tests
    assert tests.strip().endswith("python -m pytest")
    assert "python -m pytest" in (ROOT / ".ci" / "run").read_text()
    assert README.read_text().index("apt-get install") < README.read_text().index(demo)


def test_it_is_short_and_points_to_every_page_of_the_manual():
    text = README.read_text()
    assert len(text.splitlines()) <= 90
    assert set(re.findall(r"\]\(docs/([\w-]+\.md)\)", text)) == {page.name for page in PAGES}


@pytest.mark.sampled(2)
@pytest.mark.slow
def test_a_model_is_tuned_by_what_it_shows(tmp_path: Path):
    with Reader(tmp_path) as reader:
        reader.follow(README, ["Tune your own model"])
    assert [words[1] for words in reader.done] == ["zoo", "model", "build", "bench", "run", "export"]
    assert (tmp_path / "outputs.npz").is_file()
