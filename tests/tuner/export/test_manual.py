"""The page on exports works as it is written, on a smaller network of the same name."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.manual import ROOT, Reader, blocks
from tests.templates.gpu.support import device_number
from tests.tuner.export.support import write_branches
from tuner.export import export
from tuner.export.checking import check_nothing

PAGE = ROOT / "docs" / "export.md"


def _text(language: str) -> str:
    (text,) = (block.text for block in blocks(PAGE) if block.language == language)
    return text


def test_the_programs_of_the_page(exports: Path, tmp_path: Path) -> None:
    export(exports / "tiny.module", tmp_path / "classifier", "resnet18", check=check_nothing)
    (tmp_path / "main.c").write_text(_text("c"))
    image = "import numpy\nimage = numpy.ones((1, 3, 16, 16), 'float32')\n"
    (compiling,) = (block.text for block in blocks(PAGE) if block.section == "In a program" and block.language == "sh")
    for command in (
        [*shlex.split(compiling), "-Wall", "-Wextra", "-Werror"],
        ["cp", "classifier/resnet18.weights", "."],
        ["./main"],
        [sys.executable, "-c", f"{image}{_text('python')}assert outputs['gemm_0'].shape == (1, 10)"],
    ):
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (command, done.stderr)
        if command == ["./main"]:
            assert done.stdout == "no error\n"


def test_the_commands_of_the_page(tmp_path: Path) -> None:
    with Reader(tmp_path) as reader:
        for block in (b for b in blocks(PAGE) if b.section == "From a module to C" and b.language == "sh"):
            for words in block.commands():
                if words[0] == "tune":
                    reader.act(words)
                else:
                    reader.run(words)
    made = np.frombuffer((tmp_path / "output0.bin").read_bytes(), np.float32)
    assert made.shape == (10,)


@pytest.mark.night
def test_the_stages_of_the_page(tmp_path: Path) -> None:
    device_number("pocl")  # or the test is skipped
    write_branches(tmp_path / "inception_v3.onnx")
    with Reader(tmp_path) as reader:
        reader.follow(PAGE, ["Stages of a GPU"])
    described = json.loads((tmp_path / "inception.gpu" / "inception_v3.json").read_text())
    assert described["checked"] == {"equal": True}
