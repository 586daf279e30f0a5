"""What the manual shows works: its code runs, its commands and options exist, all of it is there, and it builds."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.tuner.cli.conftest import run_tune
from tests.tuner.tiny_network import write_tiny_network
from tuner.cli.reference import reference

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs").glob("*.md"))
REFERENCE = reference()


def _blocks(page: str, language: str) -> list[str]:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return re.findall(rf"```{language}[^\n]*\n(.*?)```", text, re.DOTALL)


def _commands(page: str) -> list[list[str]]:
    lines = [shlex.split(line, comments=True) for block in _blocks(page, "sh") for line in block.splitlines()]
    return [words for words in lines if words[:1] == ["tune"]]


@pytest.mark.parametrize(("page", "name"), [("template.md", "mine.py"), ("searcher.md", "downhill.py")])
def test_a_plugin_of_the_manual_does_what_its_commands_say(page: str, name: str, tmp_path: Path) -> None:
    (code,) = _blocks(page, "python")
    (tmp_path / name).write_text(code)
    commands = _commands(page)
    assert commands
    for words in commands:
        threads = ["--threads", "1"] if words[1] in ("op", "explain") else []
        done = run_tune(*words[1:], *threads, cwd=tmp_path)
        assert done.status == 0, (words, done.err)
    database = commands[0][commands[0].index("--db") + 1]
    found = run_tune("db", "stats", "--db", database, "--json", cwd=tmp_path).json()
    assert found["trials"] > 0
    assert not {"invalid", "compile", "run", "wrong_answer"} & set(found["failures_by_kind"])


def test_the_module_of_the_first_hour_is_called_as_it_says(tmp_path: Path) -> None:
    write_tiny_network(tmp_path / "net.onnx")
    tuned = run_tune(
        "op", "dense", "--shape", "1,16,10", "--threads", 1, "--trials", 1, "--db", "first.db", cwd=tmp_path
    )
    assert tuned.status == 0, tuned.err
    build = next(words for words in _commands("first-hour.md") if words[1] == "build")
    built = run_tune(*build[1:], "--threads", 1, cwd=tmp_path)
    assert built.status == 0, built.err
    (code,) = _blocks("first-hour.md", "python")
    (tmp_path / "use.py").write_text(f"{code}\nassert [o.shape for o in outputs.values()] == [(1, 10)]\n")
    done = subprocess.run([sys.executable, "use.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", [page.name for page in PAGES])
def test_every_command_and_option_of_the_manual_exists(page: str) -> None:
    known = {m[1]: m[0] for m in re.finditer(r"^#+ (tune[\w -]*)\n.*?(?=^#|\Z)", REFERENCE, re.MULTILINE | re.DOTALL)}
    for words in _commands(page):
        name = max((n for n in known if words[: n.count(" ") + 1] == n.split()), key=len, default=None)
        assert name is not None, words
        assert name != "tune" or words[1].startswith("-"), words
        for option in (word for word in words if word.startswith("-")):
            assert re.search(rf"`[^`\n]*(?<!\S|`){re.escape(option)}\b|`{re.escape(option)}\b", known[name]), (
                words,
                option,
            )


def test_every_command_is_in_the_list_of_options() -> None:
    told = run_tune("--help", cwd=ROOT).out
    names = re.findall(r"^│ (\w+)", told, re.MULTILINE)
    assert len(names) > 10
    for name in names:
        assert f"# tune {name}\n" in REFERENCE, name
    for option in ("--trials", "--measure", "--trace", "--resume", "--keep-best"):
        assert option in REFERENCE


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
    options = (tmp_path / "site" / "options" / "index.html").read_text(encoding="utf-8")
    assert "tune report" in options
    assert "every option -->" not in options
