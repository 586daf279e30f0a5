"""What a shell completes, with real shells' scripts; bash runs its own."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.tuner.cli.conftest import TUNE, run_tune
from tuner.cli import names

# What bash does on TAB, with the words that its line editor makes of `$@`: the last is being completed.
_TAB = """
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
_tune_completion tune "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


def _bash(script: str, *words: str, home: Path) -> list[str]:
    """Lines that a bash of its own writes, with this environment's `tune` and a home folder of its own."""
    path = f"{TUNE.parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "--norc", "-c", script, "bash", *words],
        env={**os.environ, "PATH": path, "HOME": str(home)},
        cwd=home,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.split("\n")[:-1]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home folder where bash completes `tune`, by `tune --install-completion`."""
    folder = tmp_path_factory.mktemp("home")
    (folder / ".bashrc").write_text("export EDITOR=ed\n")
    said = _bash("tune --install-completion; true", home=folder)
    assert said[0].startswith("bash completion installed in ")
    return folder


def _completed(home: Path, *words: str) -> list[str]:
    return _bash(f"source ~/.bashrc\n{_TAB}", *words, home=home)


def test_installing_keeps_what_the_shell_was_told(home):
    assert "export EDITOR=ed\n" in (home / ".bashrc").read_text()
    assert _bash("source ~/.bashrc; complete -p tune", home=home) == ["complete -o default -F _tune_completion tune"]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["mo"], ["model"]),
        (["b"], ["build", "bench", "board", "bundle"]),
        (["db", "ver"], ["verify"]),
        (["model", "--preset", ""], ["quick", "normal", "exhaustive"]),
        (["model", "m.onnx", "--tri"], ["--trials"]),
        (["model", "m.onnx", "--searcher", "gen"], ["genetic"]),
        (["model", "m.onnx", "--device", ""], ["cpu", "opencl:0", "cuda:0", "board:"]),
        (["model", "m.onnx", "--device", "opencl", ":", "0", "--minu"], ["--minutes"]),  # bash cuts words at a colon
        (["model", "m.onnx", "--target", "jetson-n"], ["jetson-nano"]),
        (["model", "m.onnx", "--trials", "many", "--vendor", "onnxruntime,on"], ["onnxruntime,onednn"]),
        (["zoo", "squ"], ["squeezenet1.0"]),
        (["op", "roi"], ["roi_align", "roi_pool"]),
        (["bench", "m.tuned", "--against", "ort,o"], ["ort,openvino", "ort,opencv"]),
        (["build", "m.onnx", "--device", "cp"], ["cpu"]),
        (["model", "./res"], [""]),  # nothing of ours: bash goes on with files
        (["nosuch", "x"], [""]),
    ],
)
def test_bash_completes(home, words, found):
    assert _completed(home, "tune", *words) == found


def test_completing_needs_no_tvm(tmp_path):
    """It would take a second for each TAB."""
    env = {"_TUNE_COMPLETE": "complete_bash", "COMP_WORDS": "tune zoo res", "COMP_CWORD": "2"}
    done = run_tune(cwd=tmp_path, env={**env, "PYTHONPROFILEIMPORTTIME": "1"})
    assert done.out.split() == ["resnet18", "resnet50_v1"]
    imported = {line.rpartition("|")[2].strip() for line in done.err.splitlines()}
    assert "tuner.cli.main" in imported
    assert not {"tvm", "onnx", "xgboost"} & imported


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_are_told_the_same(tmp_path, shell):
    source = run_tune(cwd=tmp_path, env={"_TUNE_COMPLETE": f"source_{shell}"})
    assert source.status == 0
    assert f"_TUNE_COMPLETE=complete_{shell}" in source.out
    asked = {"_TYPER_COMPLETE_ARGS": "tune mo", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    done = run_tune(cwd=tmp_path, env={"_TUNE_COMPLETE": f"complete_{shell}", **asked})
    assert done.status == 0
    assert "model" in done.out
    assert "Tune what a model needs" in done.out
    assert "bundle" not in done.out


def test_the_script_of_the_current_shell_is_shown(tmp_path):
    said = _bash("tune --show-completion; true", home=tmp_path)
    assert said[0] == "_tune_completion() {"
    assert not list(tmp_path.iterdir())


def test_a_shell_that_cannot_complete_is_told_what_to_do(tmp_path):
    found = subprocess.run(
        ["sh", "-c", f"'{TUNE}' --install-completion; echo status $?"],
        env={**os.environ, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout == "status 2\n"
    (line,) = found.stderr.splitlines()
    assert line.startswith("tune: --install-completion: the shell that runs this, ")
    assert "bash, zsh, fish" in line
    assert "_TUNE_COMPLETE=source_bash tune" in line
    assert not list(tmp_path.iterdir())


def test_the_names_written_down_are_those_that_there_are():
    stored = json.loads(Path(names.__file__).with_name("names.json").read_text())
    assert stored == names.registered(), "write it again: python -m tuner.cli.names"
