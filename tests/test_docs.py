"""What the manual shows works: its code runs, its commands and options exist, all of it is there, and it builds."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.board_agent.support import free_port
from tests.manual import PAGES, README, ROOT, Reader, blocks, tune_commands
from tests.tuner.cli.conftest import run_tune
from tests.tuner.cli.usage import COMMANDS, parsed
from tests.tuner.tiny_network import write_tiny_network
from tuner.cli.reference import page as page_of_options
from tuner.graph.importers.onnx.taken import table as table_of_operators

DOCS = ROOT / "docs"
TEXTS = [README, *PAGES]
IMAGE = "import numpy\nimage = numpy.ones((1, 3, 16, 16), 'float32')\n"


def _python(page: Path, title: str = "") -> str:
    (text,) = (block.text for block in blocks(page) if block.language == "python" and title in block.info)
    return text


def test_the_table_of_operators_is_the_codes() -> None:
    """`python -m tuner.graph.importers.onnx.taken` writes it."""
    page = (DOCS / "models.md").read_text()
    assert page.partition("<!-- operators -->")[2].partition("<!-- end -->")[0].strip() == table_of_operators()


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("page", "name"), [("template.md", "mine.py"), ("searcher.md", "downhill.py")])
def test_a_plugin_of_the_manual_does_what_its_commands_say(page: str, name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(_python(DOCS / page))
    commands = [words for words in tune_commands(DOCS / page) if name in words]
    assert commands
    for words in commands:
        done = run_tune(*words, "--threads", "1", cwd=tmp_path)
        assert done.status == 0, (words, done.err)
    database = commands[0][commands[0].index("--db") + 1]
    found = run_tune("db", "stats", "--db", database, "--json", cwd=tmp_path).json()
    assert found["trials"] > 0
    assert not {"invalid", "compile", "run", "wrong_answer"} & set(found["failures_by_kind"])


@pytest.mark.night
def test_the_first_hour_goes_as_it_says(tmp_path: Path) -> None:
    with Reader(tmp_path) as reader:
        reader.follow(DOCS / "first-hour.md")
    told = [words[1] for words in reader.done]
    assert told[:3] == ["doctor", "demo", "report"]
    assert {"zoo", "model", "build", "bench", "run", "explain", "db"} < set(told)
    for name in ("demo.html", "report.html", "outputs.npz"):
        assert (tmp_path / name).stat().st_size > 0


def test_a_board_is_paired_and_tuned_on_as_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    write_tiny_network(tmp_path / "net.onnx")
    with Reader(tmp_path, free_port()) as reader:
        reader.follow(DOCS / "boards.md", ["Pair it, once", "Tune", "Export", "Build"])
        listed = run_tune("board", "list", "--json", cwd=tmp_path).json()["boards"]
    assert [(board["name"], board["state"]) for board in listed] == [("pi", "ready")]
    assert json.loads((tmp_path / "net.pi" / "net.json").read_text())["checked"]["device"] == "board:pi"
    manifest = json.loads((tmp_path / "net.tuned" / "manifest.json").read_text())
    # What was measured there: its system may call the processor otherwise than the compiler does here.
    assert {"device", "family"} & {operator["source"] for operator in manifest["operators"]}


def test_a_device_without_a_network_is_tuned_as_it_says(tmp_path: Path) -> None:
    write_tiny_network(tmp_path / "net.onnx")
    with Reader(tmp_path) as reader:
        reader.follow(DOCS / "bundles.md", ["A device that no network reaches"])
    assert run_tune("db", "stats", "--db", "first.db", "--json", cwd=tmp_path).json()["trials"] > 0


def test_a_database_is_looked_after_as_it_says(tmp_path: Path) -> None:
    tuned = run_tune("op", "dense", "--shape", "1,16,10", "--trials", 2, "--db", "first.db", cwd=tmp_path)
    assert tuned.status == 0, tuned.err
    with Reader(tmp_path) as reader:
        reader.follow(DOCS / "database.md")
    assert {words[2] for words in reader.done} == {"stats", "best", "export", "import", "merge", "verify", "prune"}


def test_packs_are_made_and_pulled_as_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    tuned = run_tune("op", "dense", "--shape", "1,16,10", "--trials", 2, "--db", "first.db", cwd=tmp_path)
    assert tuned.status == 0, tuned.err
    with Reader(tmp_path) as reader:
        reader.follow(DOCS / "packs.md")
    assert {words[2] for words in reader.done} == {"make", "check", "keys", "push", "list", "trust", "pull", "distrust"}


def test_modules_are_built_by_memory_as_it_says(tmp_path: Path) -> None:
    write_tiny_network(tmp_path / "resnet18.onnx")
    with Reader(tmp_path) as reader:
        reader.follow(DOCS / "tuning.md", ["How much memory a module takes"])
    assert (tmp_path / "resnet18.small").is_dir()
    assert (tmp_path / "resnet18.fits").is_dir()


def test_other_libraries_compete_as_it_says(tmp_path: Path) -> None:
    write_tiny_network(tmp_path / "net.onnx")
    with Reader(tmp_path) as reader:
        reader.follow(DOCS / "vendors.md")
    assert (tmp_path / "net.both").is_dir()


@pytest.mark.sampled(2)
@pytest.mark.slow
def test_the_python_of_the_manual_runs(tmp_path: Path) -> None:
    page = DOCS / "python.md"
    names = "tune_and_build", "listening", "use.py", "inside"
    tune_and_build, heard, use, inside = (_python(page, name) for name in names)
    if find_spec("torch") is None:
        inside = "".join(line for line in inside.splitlines(keepends=True) if not line.startswith("backbone"))
    write_tiny_network(tmp_path / "resnet18.onnx")
    write_tiny_network(tmp_path / "net.onnx")
    shorter = re.sub(r"seconds=\d+", "trials=8", tune_and_build)
    after = _python(DOCS / "from-autotvm.md", "after")
    shortest = after.replace('preset="normal"', "trials=8")
    place = _python(DOCS / "placement.md")
    assert shorter != tune_and_build
    assert shortest != after
    assert "seconds=10" in place
    with Reader(tmp_path) as reader:
        for script in (
            shorter,
            heard,
            f"{use.replace('224', '16')}\n{inside}\nassert outputs['gemm_0'].shape == (1, 10)\n",
            f"{IMAGE}{shortest}\nassert outputs['gemm_0'].shape == (1, 10)\n",
            place.replace("seconds=10", "proposals=50") + "assert found.seconds < 0.1\n",
        ):
            reader.run([sys.executable, "-c", script])


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.name)
def test_every_command_and_option_that_is_shown_is_understood(page: Path) -> None:
    for words in tune_commands(page):
        assert parsed(words), words


def test_every_command_is_shown_somewhere() -> None:
    shown = {parsed(words) for page in TEXTS if page.name != "options.md" for words in tune_commands(page)}
    assert shown >= {path for path, command in COMMANDS.items() if len(path) == 1 and not hasattr(command, "commands")}


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.name)
def test_every_file_of_the_repository_that_is_named_is_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for name in re.findall(r"(?<![\w/.])(?:benchmarks|docs|tests|templates|tuner|vision_ops)/[\w./-]*\w", text):
        assert (ROOT / name).exists(), name


def test_the_page_of_options_is_what_the_commands_say() -> None:
    written = (DOCS / "options.md").read_text(encoding="utf-8")
    assert written == page_of_options(), "write it again: python -m tuner.cli.reference > docs/options.md"


def test_every_command_is_in_the_list_of_options() -> None:
    text = page_of_options()
    for path in COMMANDS:
        assert f"# {' '.join(('tune', *path))}\n" in text, path
    for option in ("--trials", "--measure", "--trace", "--resume", "--keep-best"):
        assert option in text


@pytest.mark.skipif(find_spec("mkdocs") is None, reason="needs mkdocs-material: pip install -e '.[docs]'")
def test_it_builds_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path / "site"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for page in PAGES:
        built = tmp_path / "site" / ("" if page.stem == "index" else page.stem) / "index.html"
        assert built.is_file(), page
        html = built.read_text(encoding="utf-8")
        assert not re.search(r"<(?:script|link|img)[^>]+(?:src|href)=\"?https?://", html), page
