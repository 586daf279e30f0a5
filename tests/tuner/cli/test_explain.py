"""`tune explain` and `tune run --trace`, on a database and modules of a real run."""

from __future__ import annotations

import json
import platform
import re
import shutil
import subprocess
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from tvm.target import Target

from templates.lowering import build
from templates.template import template_named
from tests.templates.gpu.support import device_number
from tests.tuner.cli.conftest import Done, run_tune
from tests.tuner.measure.offline.support import compilers_or_skip, multiplications
from tests.tuner.tiny_network import write_tiny_network
from tests.tuning_db import made
from tuner.cli.explain import KNOWN
from tuner.devices import open_device
from tuner.devices.profiles import host_of_profile, profile_named
from tuner.graph.layout.choice import Source, choose
from tuner.report.text import workload_text
from tuning_db import shipped
from tuning_db.record import Config, DeviceKey, Workload
from tuning_db.store import open_db

GPU = f"opencl:{device_number('pocl')}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With t.db: a convolution tuned on the CPU."""
    made = tmp_path_factory.mktemp("explained")
    words = ("op", "conv2d", "--shape", "1,16,12,12,32,3,3", "--padding", 1, "--epilogue", "relu")
    done = run_tune(*words, "--threads", 1, "--trials", 12, "--searcher", "random", "--db", "t.db", cwd=made)
    assert done.status == 0, done.err
    return made


def _explain(folder: Path, *words: object) -> Done:
    return run_tune("explain", *words, "--db", "t.db", cwd=folder)


def test_what_is_explained_is_what_the_database_has(folder: Path):
    said = _explain(folder, "16x12x12", "--threads", 1, "--json").json()
    with open_db(folder / "t.db", read_only=True) as store:
        device = open_device("cpu", 1)
        (workload,) = store.workloads()
        best = store.best(workload, device.key)
        trials = list(store.trials(workload))
    assert best is not None
    assert said["text"] == workload_text(workload)
    assert (said["seconds"], said["config"]) == (best.seconds, best.config.as_dict())
    assert said["configs"] == len({t.config for t in trials})
    assert said["flop"] == 2 * 12 * 12 * 32 * 16 * 9
    assert said["bytes"] == 4 * (16 * 144 + 32 * 16 * 9 + 32 * 144)
    tried = {json.dumps(t.config.as_dict(), sort_keys=True): t for t in trials}
    for rival in said["rivals"]:
        config = json.dumps(rival["config"], sort_keys=True)
        assert rival["config"] != said["config"]
        assert rival["times_slower"] == pytest.approx(rival["seconds"] / said["seconds"])
        assert tried[config].workload == workload
    assert "T.prim_func" in said["schedule"]
    assert said["loop"]["multiply_adds"] > 0


def test_a_person_sees_knobs_counts_the_loop_and_rivals(folder: Path):
    done = _explain(folder, "conv2d 16x12x12 -> 32, 3x3/1 +relu", "--threads", 1, "--code", "k.s")
    assert done.status == 0, done.err
    for part in ("measured on this device", "MFLOP by the direct algorithm", "hot loop", "\n> ", "Nearest rivals"):
        assert part in done.out, part
    marked = (folder / "k.s").read_text().splitlines()
    loop = _explain(folder, "16x12x12", "--threads", 1, "--json").json()["loop"]
    assert [i for i, line in enumerate(marked) if line.startswith(">")] == list(range(loop["first"], loop["last"] + 1))


@pytest.mark.night
def test_a_shipped_config_is_explained_as_what_it_is(tmp_path: Path):
    """The database knows the workload alone, by a device that has nothing in common with this one. On OpenCL's CPUs,
    which are all of a family: not every CPU is of one that something is shipped for."""
    device, stranger = open_device(GPU), DeviceKey("cuda", "other", "made-up", {})
    with open_db(tmp_path / "t.db") as store:
        found = choose([t.workload for t in shipped.trials() if t.workload.op == "conv2d"], device, store)
        workload = next(w for w, choice in found.items() if choice.source.startswith("shipped"))
        store.add(made.trial(workload=workload, device=stranger))
    done = _explain(tmp_path, workload_text(workload), "--device", GPU)
    assert done.status == 0, done.err
    assert KNOWN[found[workload].source] in " ".join(done.out.split())


def test_every_reason_for_a_choice_has_its_words():
    assert set(KNOWN) == set(get_args(Source))
    assert len(set(KNOWN.values())) == len(KNOWN)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("profile", "told"), [("jetson-orin", "registers"), ("intel-hd505", "spill_bytes"), ("mali-t860", None)]
)
def test_counts_of_a_device_that_is_not_here_are_its_compilers(folder: Path, profile: str, told: str | None):
    device = profile_named(profile)
    compilers = compilers_or_skip(device)
    said = _explain(folder, "16x12x12", "--target", profile, "--json").json()
    assert said["source"] == "default"
    assert said["rivals"] == []
    kernels = said["kernels"]
    assert kernels
    found = {name: taken for c in compilers for name, taken in c.compile(said["code"]).items()}
    for kernel in kernels:
        assert np.prod(kernel["group"]) >= 1
        compiled = kernel["compiled"] or {}
        assert (told in compiled) == (told is not None)
        assert compiled.get("local_bytes", kernel["local_bytes"]) == kernel["local_bytes"]
        assert all(value == getattr(found[kernel["name"]], name) for name, value in compiled.items())
    cuda = device if said["language"] == "CUDA" else None
    assert said["loop"]["multiply_adds"] in multiplications(said["code"], cuda)


READERS = {"x86_64": ["objdump"], "aarch64": ["aarch64-linux-gnu-objdump", "llvm-objdump"]}
MULTIPLY_ADD = {"x86_64": r"vfn?m(add|sub)\d+p[sd]", "aarch64": r"fml[as]"}
VECTOR = {"x86_64": r"%[xyz]mm(\d+)", "aarch64": r"\b[qv](\d+)\b"}
STACK = {"x86_64": r"\(%r[sb]p", "aarch64": r"\[(?:sp|x29)\b"}
STORE = {"x86_64": r"vmov[au]p[sd]\s+%", "aarch64": r"st[rpu]"}


def _loops(folder: Path, said: dict[str, Any], target: Target, machine: str) -> list[tuple[int, ...]]:
    """Of all loops in the kernel's machine code, by its compiler: instructions, multiply-adds, vector registers,
    vectors stored to and loaded from the stack."""
    reader = next(filter(None, map(shutil.which, READERS[machine])), None)
    if reader is None:
        pytest.skip(f"nothing here reads code for {machine}: apt-get install binutils-{machine}-linux-gnu")
    workload, config = Workload.from_dict(said["workload"]), Config.from_dict(said["config"])
    func = template_named(config.template).prim_func(workload, target, config)
    built = build(func.with_attr("global_symbol", "main"), target)
    built.write_to_file(str(folder / "main.o"), "o")
    listing = subprocess.run(
        [reader, "-d", "--no-show-raw-insn", folder / "main.o"], capture_output=True, text=True, check=True
    ).stdout
    code = [
        (int(found[1], 16), found[2]) for found in re.finditer(r"^\s*([0-9a-f]+):\s+(\S.*)$", listing, re.MULTILINE)
    ]
    place = {address: i for i, (address, _) in enumerate(code)}
    loops = []
    for end, (address, text) in enumerate(code):
        jump = re.match(r"(?:j\w+|b\.\w+|b|cbn?z\s+\w+,|tbn?z\s+\w+, #\w+,)\s+(?:0x)?([0-9a-f]+)\b", text)
        if jump and int(jump[1], 16) <= address and int(jump[1], 16) in place:
            loops.append(_in_loop([t for _, t in code[place[int(jump[1], 16)] : end + 1]], machine))
    return loops


def _in_loop(body: list[str], machine: str) -> tuple[int, ...]:
    body = [text for text in body if not re.match(r"(data16 |cs )*nop|xchg\s+%ax,%ax", text)]
    onto = [text for text in body if re.search(VECTOR[machine], text) and re.search(STACK[machine], text)]
    stores = [text for text in onto if re.match(STORE[machine], text)]
    adds = sum(re.match(MULTIPLY_ADD[machine], text) is not None for text in body)
    registers = {number for text in body for number in re.findall(VECTOR[machine], text.replace(".4s", ""))}
    return len(body), adds, len(registers), len(stores), len(onto) - len(stores)


@pytest.mark.parametrize(("words", "machine"), [((), "x86_64"), (("--target", "mali-t860:cpu"), "aarch64")])
def test_counts_of_a_cpus_kernel_are_those_of_its_machine_code(folder: Path, words: tuple[str, ...], machine: str):
    if not words and platform.machine() != machine:
        pytest.skip(f"this machine is no {machine}")
    said = _explain(folder, "16x12x12", *(words or ("--threads", 1)), "--json").json()
    target = host_of_profile(profile_named("mali-t860")).target if words else open_device("cpu", 1).target
    assert said["language"] == "assembly"
    assert said["device"]["family"].startswith(machine)
    loop = said["loop"]
    names = ("instructions", "multiply_adds", "registers", "stack_stores", "stack_loads")
    counted = tuple(loop[name] for name in names)
    loops = _loops(folder, said, target, machine)
    assert counted in loops
    assert loop["multiply_adds"] > 0
    assert (
        max(adds for instructions, adds, *_ in loops if instructions <= loop["instructions"]) == loop["multiply_adds"]
    )


@pytest.mark.parametrize("driver", ["pocl", "intel"])
def test_an_opencl_device_here_shows_its_source(folder: Path, driver: str):
    said = _explain(folder, "16x12x12", "--device", f"opencl:{device_number(driver)}", "--json").json()
    assert said["language"] == "OpenCL C"
    assert "__kernel" in said["code"]
    assert said["loop"]["registers"] is None
    assert said["loop"]["multiply_adds"] in multiplications(said["code"])


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("no such",), "no workload of"),
        (("16x12x12", "--target", "cray-1"), "cray-1"),
        (("16x12x12", "--target", "jetson-nano", "--device", "opencl:0"), "leave out --device"),
        (("16x12x12", "--code", "nowhere/k.s"), "does not exist"),
    ],
)
def test_what_cannot_be_explained_is_said_in_a_line(folder: Path, words: tuple[str, ...], part: str):
    done = _explain(folder, *words)
    assert done.status == 2
    assert part in done.error


def test_a_trace_has_every_call_and_launch_in_order(tune: Callable[..., Done], tmp_path: Path):
    write_tiny_network(tmp_path / "tiny.onnx")
    words = ("op", "dense", "--shape", "1,16,10", "--epilogue", "bias", "--threads", 1, "--trials", 4, "--db", "t.db")
    assert tune(*words).status == 0
    both = ("--device", f"{GPU},cpu", "--fallback", "dense", "--threads", 1, "--db", "t.db", "-o", "out")
    assert tune("build", "tiny.onnx", *both).status == 0
    np.savez(tmp_path / "x.npz", data=np.ones((1, 3, 16, 16), np.float32))
    done = tune("run", "out", "--input", "x.npz", "--trace", "trace.json")
    assert done.status == 0, done.err
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    spans = [e for e in events if e["ph"] == "X"]
    assert all(span["dur"] >= 0 for span in spans)
    host = [span for span in spans if span["pid"] == 1]
    for before, after in pairwise(host):
        assert before["ts"] + before["dur"] <= after["ts"] + 1e-3
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    layers = [span["args"]["layer"] for span in host if "layer" in span["args"]]
    assert layers == [operator["node"] for operator in manifest["operators"]]
    assert "copy between devices" in {span["name"] for span in host}
    device = [span for span in spans if span["pid"] == 2]
    kernels = [o["function"] for o in manifest["operators"] if o["device"] == 0]
    for function in kernels:
        assert any(span["name"].startswith(function) for span in device), function
    copies = [span for span in host if span["name"] == "copy between devices"]
    assert max(span["ts"] + span["dur"] for span in device) <= copies[-1]["ts"] + copies[-1]["dur"] + 1e3
    expected = {span["name"]: span for span in spans if span["pid"] == 3}
    stored = {o["node"]: o["seconds"] for o in manifest["operators"] if o["seconds"] is not None}
    assert stored
    assert {name: span["dur"] for name, span in expected.items()} == pytest.approx(
        {name: 1e6 * seconds for name, seconds in stored.items()}
    )
    lack = len(manifest["operators"]) - len(stored)
    named = [span["name"] for span in host if "layer" not in span["args"] and not span["name"].startswith("vm.")]
    others = len(named) - len(copies)
    assert min(lack, others) > 0
    told = f"{lack} layers, {others} other steps, {len(copies)} copies between devices"
    assert {e["args"]["name"] for e in events if e["name"] == "process_name"} == {
        "measured: host's calls",
        "measured: OpenCL",
        f"simulated: stored trials (unknown: {told})",
    }
