"""This benchmark exports networks for other systems and processors, runs them there, and compares their outputs.

    python benchmarks/exported_elsewhere.py [--only NAME,...] [--onnx FILE,...] [--targets aarch64,riscv64v,...]
        [--folder DIR] [--json FILE]

On this processor, the example in C is linked with musl and runs in a root folder that has nothing but the program, the
weights and the inputs (for that, run it as root). `differing` is the number of bytes in which its outputs differ from
the module's. For each target, which is a name that `tune export --target` knows, the example runs under qemu.
`error` is the largest difference from onnxruntime's output, over the largest value of that output. `seconds` are those
of an inference under emulation, which say nothing of a real processor. zig links everything: pip install
'edgetune[cross]'; the emulators are in Debian's qemu-user.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from deploy import MODELS, tune, zoo_files
from models_cpu import machine

EMULATORS = {"aarch64": "qemu-aarch64", "armv7a": "qemu-arm", "riscv64": "qemu-riscv64", "x86_64": "qemu-x86_64"}


def example(export: Path, machine_name: str, program: Path) -> None:
    """Compile an export's example for a machine, statically with musl."""
    from tuner.export.compiling import toolchain_for

    command = [*toolchain_for(machine_name, "musl").compiler, "-static", "-O2", f"-I{export}", "-o", str(program)]
    subprocess.run([*command, str(export / "example.c"), str(export / "libnet.a"), "-lm"], check=True)


def results(folder: Path, like: Mapping[str, tuple[tuple[int, ...], str]]) -> dict[str, np.ndarray]:
    """Return the outputs that an example wrote to a folder."""
    return {
        name: np.frombuffer((folder / f"output{i}.bin").read_bytes(), dtype).reshape(shape)
        for i, (name, (shape, dtype)) in enumerate(like.items())
    }


def in_a_bare_root(model: Path, folder: Path, inputs: Mapping[str, np.ndarray], db: str) -> dict[str, Any]:
    """Run the export in a root folder of its own, and compare it with the module."""
    from tuner.module import load

    tune("build", model, "-o", folder / "module", "--db", db)
    tune("export", folder / "module", "-o", folder / "musl", "--name", "net", "--libc", "musl")
    root = folder / "root"
    root.mkdir(exist_ok=True)
    example(folder / "musl", platform.machine(), root / "example")
    (root / "net.weights").write_bytes((folder / "musl" / "net.weights").read_bytes())
    for i, array in enumerate(inputs.values()):
        (root / f"{i}.bin").write_bytes(array.tobytes())
    words = ["/usr/sbin/chroot", root, "/example", "/net.weights", "3", *(f"/{i}.bin" for i in range(len(inputs)))]
    said = subprocess.run(words, env={}, check=True, capture_output=True, text=True).stdout.splitlines()
    module = load(folder / "module")
    found = results(root, module.outputs)
    differing = sum(
        int(np.sum(np.frombuffer(value.tobytes(), np.uint8) != np.frombuffer(part(found[name], value), np.uint8)))
        for name, value in module(inputs).items()
    )
    return {"where": "bare root", "differing": differing, "error": None, "said": said[-2]}


def part(whole: np.ndarray, value: np.ndarray) -> bytes:
    """Return the bytes of the entries that are valid."""
    return whole[tuple(slice(extent) for extent in value.shape)].tobytes()


def emulated(model: Path, folder: Path, inputs: Mapping[str, np.ndarray], target: str, db: str) -> dict[str, Any]:
    """Run the export for a target under an emulator, and compare it with onnxruntime."""
    from tuner.devices.cpu import cpu_elsewhere
    from tuner.measure.codegen.toolchain import machine_of
    from tuner.module import OnnxReference

    export, work = folder / target, folder / f"{target}.work"
    work.mkdir(exist_ok=True)
    tune("export", model, "-o", export, "--name", "net", "--target", target, "--libc", "musl", "--db", db)
    machine_name = machine_of(cpu_elsewhere(target).target)
    example(export, machine_name, work / "example")
    for i, array in enumerate(inputs.values()):
        (work / f"{i}.bin").write_bytes(array.tobytes())
    files = [f"{i}.bin" for i in range(len(inputs))]
    begin = time.perf_counter()
    command = [EMULATORS[machine_name], "./example", str(export / "net.weights"), "1", *files]
    vectors = {**os.environ, "QEMU_CPU": "rv64,v=true,vlen=128"} if machine_name == "riscv64" else None
    subprocess.run(command, cwd=work, env=vectors, check=True, capture_output=True, text=True)
    seconds = time.perf_counter() - begin
    described = json.loads((export / "net.json").read_text())["outputs"]
    found = results(work, {output["name"]: (tuple(output["shape"]), output["dtype"]) for output in described})
    errors = []
    for name, wanted in OnnxReference(model)(inputs).items():
        got = np.frombuffer(part(found[name], wanted), wanted.dtype).reshape(wanted.shape).astype(np.float64)
        errors.append(float(np.abs(got - wanted).max() / max(np.abs(wanted).max(), 1e-30)))
    return {"where": target, "differing": None, "error": max(errors), "seconds": seconds}


def measured(model: Path, folder: Path, targets: Sequence[str], db: str) -> list[dict[str, Any]]:
    from tuner.graph import load_onnx
    from tuner.module import random_inputs

    inputs = random_inputs(load_onnx(model).inputs, 0)
    rows = []
    for where in ("", *targets):
        row = emulated(model, folder, inputs, where, db) if where else in_a_bare_root(model, folder, inputs, db)
        rows.append({"model": model.stem, **row})
        print(json.dumps(rows[-1]), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(MODELS), help="networks of the zoo, or nothing")
    parser.add_argument("--onnx", default="", help="files")
    parser.add_argument("--targets", default="aarch64,armv7,riscv64,riscv64v")
    parser.add_argument("--folder", type=Path, help="keep what is made here")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        from tuning_db.store import open_db

        folder = options.folder or Path(temporary)
        folder.mkdir(exist_ok=True)
        db = str(folder / "empty.db")
        open_db(Path(db)).close()
        files = [Path(name) for name in options.onnx.split(",") if name]
        files += zoo_files(filter(None, options.only.split(",")), folder)
        rows: list[dict[str, Any]] = []
        for file in files:
            (folder / file.stem).mkdir(exist_ok=True)
            rows += measured(file, folder / file.stem, options.targets.split(","), db)
    if options.json is not None:
        options.json.write_text(json.dumps({"rows": rows, "machine": machine()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
