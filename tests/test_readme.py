"""What the README shows works: its commands exist, its Python runs (on a smaller network, with a smaller budget)."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from tests.tuner.tiny_network import write_tiny_network

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def _blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_its_first_command_runs_the_demo_and_its_second_the_tests():
    demo, tests, *_ = _blocks("sh")
    assert "pip install -e '.[ort]'" in demo
    assert demo.strip().endswith("tune demo")
    assert "pip install -e '.[dev]'" in tests
    assert tests.strip().endswith("python -m pytest")
    assert "python -m pytest" in (ROOT / ".ci" / "run").read_text()


def test_every_option_that_it_shows_exists():
    lines = [shlex.split(line, comments=True) for block in _blocks("sh")[2:] for line in block.splitlines()]
    shown = [words for words in lines if words[0] == "tune"]
    commands = {
        "model",
        "op",
        "build",
        "bench",
        "run",
        "doctor",
        "replay",
        "zoo",
        "plan",
        "board",
        "bundle",
        "report",
        "watch",
        "explain",
    }
    assert {words[1] for words in shown} == commands
    for words in shown:
        name = words[1:3] if words[1] in ("board", "bundle") else words[1:2]
        command = [Path(sys.executable).with_name("tune"), *name, "--help"]
        text = subprocess.run(command, capture_output=True, text=True, check=True, env={"COLUMNS": "200"}).stdout
        for option in (word for word in words if word.startswith("-")):
            assert re.search(rf"(?<!\S){re.escape(option)}(?!\S)", text.replace(",", " ")), (words[1], option)


def test_its_python_runs(tmp_path):
    place, use, tune_and_build, inside = _blocks("python")
    assert "seconds=10" in place
    (tmp_path / "place.py").write_text(place.replace("seconds=10", "proposals=50") + "assert found.seconds < 0.1\n")
    if find_spec("torch") is None:
        inside = "".join(line for line in inside.splitlines(keepends=True) if not line.startswith("backbone"))
    write_tiny_network(tmp_path / "resnet18.onnx")
    shorter = re.sub(r"seconds=\d+", "trials=8", tune_and_build)
    assert shorter != tune_and_build
    (tmp_path / "tune_and_build.py").write_text(shorter)
    image = "import numpy\nimage = numpy.ones((1, 3, 16, 16), 'float32')\n"
    (tmp_path / "use.py").write_text(f"{image}{use}\n{inside}\nassert outputs['gemm_0'].shape == (1, 10)\n")
    for script in ("place.py", "tune_and_build.py", "use.py"):
        done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
