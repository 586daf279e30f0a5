"""The README and the manual as tests take them: their blocks of code, and a reader who does what a page says.

The reader's rule: networks are tiny, `--minutes` become a few trials, bundles have few configs, and times may differ by
any factor; what installs and what copies is left out, for everything is here already. All else is real and as written,
one command after the other.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.tuner.cli.conftest import TUNE, run_tune
from tests.tuner.tiny_network import write_tiny_network

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = sorted((ROOT / "docs").glob("*.md"))
TRIALS = "8"
ELSEWHERE = ("python3 -m venv", ".venv/bin/pip", "board/bin/pip", "source", "scp")


@dataclass(frozen=True)
class Block:
    """A block of code and the heading that it is under; `info`: what is behind the language."""

    section: str
    language: str
    info: str
    text: str

    def commands(self) -> list[list[str]]:
        """The words of every command, without comments; what && joins are several."""
        found = [shlex.split(part, comments=True) for line in self.text.splitlines() for part in line.split(" && ")]
        return [words for words in found if words]


def blocks(page: Path) -> Iterator[Block]:
    """All of a page, in order."""
    section = ""
    for found in re.finditer(r"^#+ ([^\n]+)$|^```(\w+) *([^\n]*)\n(.*?)^```$", page.read_text(), re.M | re.S):
        if found[1]:
            section = found[1]
        else:
            yield Block(section, found[2], found[3], found[4])


def tune_commands(page: Path) -> list[list[str]]:
    """The words behind `tune` of every command that a page shows, without where its output goes."""
    shown = [words for block in blocks(page) if block.language == "sh" for words in block.commands()]
    own = [words[1:] for words in shown if words[0] in ("tune", ".venv/bin/tune")]
    return [words[: words.index(">")] if ">" in words else words for words in own]


def smaller(words: list[str]) -> list[str]:
    """A `tune` command by the reader's rule."""
    if words == ["demo"]:
        return [*words, "--minutes", "0.05"]
    if words[:2] == ["db", "verify"]:
        return [*words, "--factor", "1e9"] if "--measure" in words else words
    if words[0] == "quantize" and "--measure" in words:
        return [*words, "--minutes", "0.01"]
    if words[:2] == ["bundle", "make"]:
        return [*words, "--configs", "1"]
    return shlex.split(re.sub(r"--minutes \S+", f"--trials {TRIALS}", shlex.join(words)))


class Reader:
    """Does what pages say, in a folder. `port`: of the board that a page pairs, here. As a context: what was left
    running is ended with it."""

    def __init__(self, folder: Path, port: int = 0) -> None:
        self.folder, self._port = folder, port
        self._code = ""
        self._running: list[subprocess.Popen[str]] = []
        self.done: list[list[str]] = []
        (folder / "edgetune-demo").mkdir()
        write_tiny_network(folder / "edgetune-demo" / "resnet18.onnx")  # the demo writes none where one is

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running:
            process.terminate()
            process.communicate()

    def follow(self, page: Path, sections: Collection[str] | None = None) -> None:
        """Run the blocks of a page, or of some of its sections."""
        found = [block for block in blocks(page) if sections is None or block.section in sections]
        assert sections is None or {block.section for block in found} == set(sections)
        for block in found:
            if block.language == "python":
                self.run([sys.executable, "-c", block.text])
                continue
            for words in block.commands():
                if not " ".join(words).startswith(ELSEWHERE):
                    self.act(words)
                    self.done.append(words)

    def act(self, words: list[str]) -> None:
        """One command of a shell."""
        if words[0] == "tune" and words[1:3] == ["board", "pair"]:
            more = ["--address", "127.0.0.1", "--port", str(self._port)]
            self._code = self._started([TUNE, *words[1:], *more], "--pair").rpartition(" ")[2]
        elif words[0] == "tune":
            self._tune(smaller(words[1:]))
        elif words[0] == "board/bin/python":
            given = [self._code if w == "CODE" else "127.0.0.1" if w == "0.0.0.0" else w for w in words[1:]]
            keys = self.folder / "keys"
            more = ["--port", str(self._port), "--folder", str(keys)]
            self._started([sys.executable, *given, *more], "listening on")
            assert self._running[0].wait() == 0  # it has been paired with
        else:
            assert words[0] == "python3", words
            *command, to = words[1:] if ">" in words else (*words[1:], None)
            printed = self.run([sys.executable, *(w for w in command if w != ">")])
            if to is not None:
                (self.folder / to).write_text(printed)

    def run(self, command: list[str]) -> str:
        """What it prints; it has to succeed."""
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (command, done.stderr)
        return done.stdout

    def _tune(self, words: list[str]) -> None:
        done = run_tune(*words, cwd=self.folder)
        assert done.status == 0, (words, done.err)
        if words[0] == "zoo":
            write_tiny_network(self.folder / words[words.index("-o") + 1])

    def _started(self, command: list[str | Path], until: str) -> str:
        """The first line of what goes on running that has `until` in it."""
        process = subprocess.Popen(
            command, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._running.append(process)
        assert process.stdout is not None
        said = ""
        for line in process.stdout:
            said += line
            if until in line:
                return line.strip()
        raise AssertionError((command, said))
