"""Whatever a network hands to an operator, it reads and writes nothing outside: kernels for a host, written in C and
run under AddressSanitizer with every buffer and workspace in a block of its own."""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import tirx
from tvm.target import Target

from templates.kernels import Cells, Emitter, function
from templates.lowering import lowering_context
from templates.operator import TensorSpec, operator_named
from templates.template import template_named
from tests.vision_ops.support import Place, configs_of
from tests.vision_ops.test_contract import WORKLOADS

MAIN = Path(__file__).with_name("sanitized.c")
CODES = {"i": 0, "u": 1, "f": 2}  # of DLPack
FLAGS = ("-O1", "-g", "-fsanitize=address,bounds,float-cast-overflow", "-fno-sanitize-recover=all")


def program_of(func: tirx.PrimFunc, folder: Path) -> Path:
    """A function for a host, with the main program around it."""
    target = Target("c", host="c")
    with lowering_context():
        module = tvm.tirx.build(func.with_attr("global_symbol", "main"), target=target)
    (folder / "kernel.c").write_text(module.inspect_source())
    compiler = shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler with AddressSanitizer here: apt-get install gcc")
    includes = [Path(package.__file__).parent / "include" for package in (tvm, tvm_ffi)]
    command = [compiler, *FLAGS, *(f"-I{path}" for path in includes), "kernel.c", str(MAIN), "-o", "program", "-lm"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "program"


def run(program: Path, operands: Sequence[np.ndarray]) -> subprocess.CompletedProcess[str]:
    file = program.with_name("operands")
    with file.open("wb") as stream:
        stream.write(struct.pack("q", len(operands)))
        for array in operands:
            head = CODES[array.dtype.kind], 8 * array.dtype.itemsize, array.ndim, *array.shape
            stream.write(struct.pack(f"{len(head)}q", *head))
            stream.write(np.ascontiguousarray(array).tobytes())
    environment = {"ASAN_OPTIONS": "detect_leaks=0"}  # a workspace is given back by the kernel or by the end
    return subprocess.run([program, file], capture_output=True, text=True, env=environment)


def strange(spec: TensorSpec, rng: np.random.Generator) -> np.ndarray:
    """What no network should give."""
    if spec.dtype == "float32":
        values = [np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-40, -0.0, 7.5, -123456.0]
        return rng.choice(np.array(values, np.float32), spec.shape)
    return rng.integers(-(2**31), 2**31, spec.shape).astype(spec.dtype)


# TVM writes vectors in C for other compilers, and the products of matrices are nothing but vectors.
PRODUCTS = ("attention", "batch_matmul", "dense_4bit", "recurrent")
SCALAR = [name for name, workload in WORKLOADS.items() if workload.op not in PRODUCTS]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", SCALAR)
def test_nothing_outside_is_touched(tmp_path: Path, name: str) -> None:
    workload, target = WORKLOADS[name], Place.named("host").target
    operator, rng = operator_named(workload.op), np.random.default_rng(7)
    usual = operator.random_inputs(workload, rng)
    outputs = [np.zeros(spec.shape, spec.dtype) for spec in operator.outputs(workload)]
    config = next(c for c in configs_of(workload, target, samples=8) if c.knobs.get("vec", 1) == 1)
    program = program_of(template_named(config.template).prim_func(workload, target, config), tmp_path)
    for inputs in (usual, *([strange(spec, rng) for spec in operator.inputs(workload)] for _ in range(3))):
        done = run(program, [*inputs, *outputs])
        assert done.returncode == 0, done.stderr[:2000]


@pytest.mark.parametrize(("at", "sound"), [(3, True), (4, False), (-1, False), (2**20, False)])
def test_what_does_read_outside_is_found(tmp_path: Path, at: int, sound: bool) -> None:
    def body(data: Cells, indices: Cells, out: Cells) -> None:
        with Emitter(None).launch(1):
            out[0] = data[indices[0]]

    operands = [
        TensorSpec("data", (4,), "float32"),
        TensorSpec("at", (1,), "int32"),
        TensorSpec("out", (1,), "float32"),
    ]
    program = program_of(function(operands, body), tmp_path)
    done = run(program, [np.ones(4, np.float32), np.array([at], np.int32), np.zeros(1, np.float32)])
    assert (done.returncode == 0) == sound
    assert sound or "AddressSanitizer" in done.stderr
