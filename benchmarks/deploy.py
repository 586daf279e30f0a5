"""This benchmark compares what it takes to run a network: size, start, memory and latency, by ours and by others.

    python benchmarks/deploy.py [--only NAME,...] [--threads 2] [--rounds 7] [--db FILE] [--onnx FILE,...]
        [--onnx2tf PROGRAM] [--folder DIR] [--json FILE]

Contenders are our module, its export in Python with NumPy alone ("light") and in C, onnxruntime in Python and in C
("onnxruntime_c": onnxruntime.c over the library of its wheel), and OpenVINO, ncnn and LiteRT where they are installed
(pip install openvino ncnn ai-edge-litert; pip install --no-deps pnnx, which converts networks for ncnn). --onnx2tf is
the program of that name, which converts networks for LiteRT; as it needs TensorFlow, it is in an environment of its own
(pip install onnx2tf tensorflow tf-keras onnx-graphsurgeon). Each round starts every contender
once, in a process of its own, and they alternate. All compute in single precision (OpenVINO by itself takes bfloat16
where the processor has it). `start` is from the begin of a contender's import (in C of main) to
its first result, in milliseconds. `memory` is the peak of resident memory in MiB; `own` is without what Python with
NumPy takes by itself. `latency` is the median of the runs of all rounds, in milliseconds. `bytes` is the size of the
libraries that are loaded. A network that ncnn or LiteRT does not compute as onnxruntime does is left out there.

A ratio is the median of the ratios of all rounds. In the summary, library_bytes_<model> is the size of our library
without weights. start_vs_ort_<model> and memory_vs_ort_<model> are those of the light wrapper over onnxruntime's in
Python (below 1 is less), and those with _c_vs_ort_c_ are those of the library over onnxruntime's in C.
latency_vs_module_<model> is the C library's latency over the module's.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from models_cpu import machine

MODELS = ("resnet18", "ssd_512_mobilenet1.0")
RUNS = 20

# What a contender's process does. It prints one JSON object: seconds to the first result, of runs, and bytes of memory.
CHILD = """
import json, re, sys, time
import numpy as np
def peak_bytes():  # what getrusage tells includes the process that this one was forked from
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) << 10
kind, path, threads, runs, given = sys.argv[1:6]
inputs = dict(np.load(given))
before = peak_bytes()
begin = time.perf_counter()
if kind == "module":
    from tuner.module import load
    call = load(path)
elif kind == "light":
    sys.path.insert(0, path)
    from net import Network
    call = Network(threads=int(threads))
elif kind == "onnxruntime":
    import onnxruntime
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = int(threads)
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    call = lambda values: session.run(None, values)
elif kind == "ncnn":
    import ncnn
    net = ncnn.Net()
    net.opt.num_threads = int(threads)
    net.opt.use_fp16_packed = net.opt.use_fp16_storage = net.opt.use_fp16_arithmetic = net.opt.use_bf16_storage = False
    net.load_param(f"{path}.param")
    net.load_model(f"{path}.bin")
    def call(values):
        extractor = net.create_extractor()
        for i, value in enumerate(values.values()):
            extractor.input(f"in{i}", ncnn.Mat(np.ascontiguousarray(value[0])))
        return [np.array(extractor.extract(name)[1]) for name in net.output_names()]
elif kind == "litert":
    from ai_edge_litert.interpreter import Interpreter
    interpreter = Interpreter(model_path=path, num_threads=int(threads))
    interpreter.allocate_tensors()
    places, results = interpreter.get_input_details(), interpreter.get_output_details()
    def call(values):
        for place, value in zip(places, values.values()):
            fits = tuple(place["shape"]) == value.shape  # else it has the channels last
            interpreter.set_tensor(place["index"], value if fits else np.moveaxis(value, 1, -1))
        interpreter.invoke()
        return [interpreter.get_tensor(result["index"]) for result in results]
else:
    import openvino
    core = openvino.Core()
    properties = {"INFERENCE_NUM_THREADS": int(threads), "PERFORMANCE_HINT": "LATENCY"}
    compiled = core.compile_model(path, "CPU", properties | {"INFERENCE_PRECISION_HINT": "f32"})
    request = compiled.create_infer_request()
    call = lambda values: request.infer(values, share_inputs=True)
call(inputs)
start = time.perf_counter() - begin
seconds = []
for _ in range(int(runs)):
    begin = time.perf_counter()
    call(inputs)
    seconds.append(time.perf_counter() - begin)
peak = peak_bytes()
mapped = {line.split()[-1] for line in open("/proc/self/maps") if ".so" in line}
found = {"start": start, "seconds": seconds, "peak": peak, "before": before, "maps": sorted(mapped)}
print(json.dumps(found))
"""


def tune(*words: object) -> None:
    subprocess.run([sys.executable, "-m", "tuner", *map(str, words)], check=True, stdout=subprocess.DEVNULL)


def zoo_files(names: Iterable[str], folder: Path) -> list[Path]:
    """Return networks of the zoo as files in a folder. Those that are missing are written."""
    files = [folder / f"{name}.onnx" for name in names]
    for file in files:
        if not file.exists():
            tune("zoo", file.stem, "-o", file)
    return files


def prepared(model: Path, folder: Path, threads: int, db: str) -> dict[str, Path]:
    """Build and export a model, and return what each contender opens."""
    module, export = folder / "module", folder / "export"
    if not module.exists():
        tune("build", model, "-o", module, "--threads", threads, "--db", db)
    tune("export", module, "-o", export, "--name", "net")
    subprocess.run(["make", "-s", "-C", str(export), "example"], check=True)
    found = {"module": module, "light": export, "c": export, "onnxruntime": model, "onnxruntime_c": model}
    return found | ({"openvino": model} if find_spec("openvino") else {})


def for_ncnn(model: Path, folder: Path, inputs: Mapping[str, np.ndarray]) -> dict[str, Path]:
    """Convert a model for ncnn, in single precision. Return what ncnn opens, or nothing where it is not installed or
    does not compute what onnxruntime does."""
    converter = find_spec("pnnx")
    if find_spec("ncnn") is None or converter is None or converter.origin is None:
        return {}
    place = folder / "ncnn"
    place.mkdir(exist_ok=True)
    shutil.copy(model, place / "net.onnx")
    shapes = ",".join(str(list(value.shape)).replace(" ", "") for value in inputs.values())
    command = [Path(converter.origin).with_name("pnnx"), "net.onnx", f"inputshape={shapes}", "fp16=0"]
    subprocess.run(command, cwd=place, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    opened = place / "net.ncnn"
    if opened.with_suffix(".ncnn.bin").exists() and ncnn_is_right(opened, model, inputs):
        return {"ncnn": opened}
    print(f"{model.stem}: ncnn is left out, as it does not compute what onnxruntime does")
    return {}


def for_litert(model: Path, folder: Path, inputs: Mapping[str, np.ndarray], converter: str | None) -> dict[str, Path]:
    """Convert a model for LiteRT. Return what it opens, or nothing where it is not installed, or does not compute what
    onnxruntime does."""
    if converter is None or find_spec("ai_edge_litert") is None:
        return {}
    place = folder / "litert"
    opened = place / f"{model.stem}_float32.tflite"
    if not opened.exists():
        place.mkdir(exist_ok=True)
        # The images that the converter tries its steps on. Without them it would fetch some.
        images = np.random.default_rng(0).random((20, 128, 128, 3), np.float32)
        np.save(place / "calibration_image_sample_data_20x128x128x3_float32.npy", images)
        command = [shutil.which(converter) or converter, "-i", model.resolve(), "-o", place.resolve(), "--non_verbose"]
        subprocess.run(command, cwd=place, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    if opened.exists() and litert_is_right(opened, model, inputs):
        return {"litert": opened}
    print(f"{model.stem}: LiteRT is left out, as it does not compute what onnxruntime does")
    return {}


def by_onnxruntime(model: Path, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Return onnxruntime's outputs."""
    import onnxruntime

    return onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, dict(inputs))


def is_close(found: np.ndarray, right: np.ndarray) -> bool:
    """Return whether an output is the right one within a hundredth of its largest value, in whatever shape."""
    return found.size == right.size and bool(np.abs(found.ravel() - right.ravel()).max() <= 0.01 * np.abs(right).max())


def litert_is_right(opened: Path, model: Path, inputs: Mapping[str, np.ndarray]) -> bool:
    """Return whether LiteRT's outputs are close to onnxruntime's, in whatever order."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_path=str(opened))
    interpreter.allocate_tensors()
    for place, value in zip(interpreter.get_input_details(), inputs.values(), strict=True):
        fits = tuple(place["shape"]) == value.shape
        interpreter.set_tensor(place["index"], value if fits else np.moveaxis(value, 1, -1))
    interpreter.invoke()
    found = [interpreter.get_tensor(result["index"]) for result in interpreter.get_output_details()]
    return all(any(is_close(output, right) for output in found) for right in by_onnxruntime(model, inputs))


def ncnn_is_right(opened: Path, model: Path, inputs: Mapping[str, np.ndarray]) -> bool:
    """Return whether ncnn's outputs are close to onnxruntime's."""
    import ncnn

    net, wanted = ncnn.Net(), by_onnxruntime(model, inputs)
    net.load_param(f"{opened}.param")
    net.load_model(f"{opened}.bin")
    extractor = net.create_extractor()
    for i, value in enumerate(inputs.values()):
        extractor.input(f"in{i}", ncnn.Mat(np.ascontiguousarray(value[0])))
    for name, right in zip(net.output_names(), wanted, strict=False):
        status, found = extractor.extract(name)
        if status or not is_close(np.array(found), right):
            return False
    return len(net.output_names()) == len(wanted)


def onnxruntime_libraries() -> list[Path]:
    """Return the libraries for C that onnxruntime's wheel brings."""
    spec = find_spec("onnxruntime")
    assert spec is not None
    assert spec.origin is not None
    return list((Path(spec.origin).parent / "capi").glob("libonnxruntime.so.*"))


def onnxruntime_program(folder: Path) -> Path:
    """Compile onnxruntime.c against the library of onnxruntime's wheel, and return the program."""
    (library,) = onnxruntime_libraries()
    program, source = folder / "onnxruntime", Path(__file__).with_name("onnxruntime.c")
    named = folder / "libonnxruntime.so.1"  # as it calls itself; the wheel has no file of that name
    named.unlink(missing_ok=True)
    named.symlink_to(library)
    subprocess.run(["cc", "-O2", "-o", program, source, named, f"-Wl,-rpath,{folder.resolve()}"], check=True)
    return program


def started(kind: str, path: Path, inputs: Path, threads: int) -> dict[str, Any]:
    """Start a contender once, and return what it measured of itself."""
    files = sorted(str(file) for file in inputs.parent.glob("input*.bin"))
    if kind == "c":
        return started_c([path / "example", path / "net.weights", RUNS, *files], threads)
    if kind == "onnxruntime_c":
        return started_c(onnxruntime_words(path, inputs.parent, files, threads), threads)
    environment = {**os.environ, "TVM_NUM_THREADS": str(threads)}
    command = [sys.executable, "-c", CHILD, kind, str(path), str(threads), str(RUNS), str(inputs)]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def onnxruntime_words(model: Path, folder: Path, files: Sequence[str], threads: int) -> list[object]:
    """Return the command that runs a model by onnxruntime.c."""
    import onnx

    graph = onnx.load(model).graph
    weights = {tensor.name for tensor in graph.initializer}
    words: list[object] = [folder / "onnxruntime", model, threads, RUNS, len(graph.output)]
    words += [output.name for output in graph.output]
    for value, file in zip([v for v in graph.input if v.name not in weights], files, strict=True):
        kind = value.type.tensor_type
        words += [value.name, kind.elem_type, "x".join(str(d.dim_value) for d in kind.shape.dim), file]
    return words


def started_c(words: Sequence[object], threads: int) -> dict[str, Any]:
    """Run a program in C on as many cores as it has threads, and return what it says of itself."""
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))[:threads]))
    with tempfile.TemporaryDirectory() as folder:
        pinned = ["taskset", "-c", cores, *map(str, words)]
        said = subprocess.run(pinned, cwd=folder, check=True, capture_output=True, text=True).stdout
    *_, times, memory = said.splitlines()
    said_words = times.split()  # first result after X ms, median of N runs Y ms
    start, latency, peak = float(said_words[3]) / 1e3, float(said_words[-2]) / 1e3, float(memory.split()[2]) * 2**20
    return {"start": start, "seconds": [latency], "peak": peak, "before": 0, "maps": []}


def library_bytes(kind: str, path: Path, maps: Sequence[str]) -> int:
    """Return the size of the libraries that a contender brings: those of its own packages."""
    if kind in ("c", "light"):
        return (path / "libnet.so").stat().st_size
    if kind == "onnxruntime_c":
        return sum(p.stat().st_size for p in onnxruntime_libraries())
    own = {"module": ("tvm", "module"), "litert": ("ai_edge_litert",)}.get(kind, (kind,))
    return sum(os.path.getsize(p) for p in maps if any(f"/{o}" in p for o in own) and os.path.exists(p))


def measured(model: Path, folder: Path, asked: argparse.Namespace, db: str) -> list[dict[str, Any]]:
    """Return a row for each contender."""
    from tuner.arrays import write_arrays
    from tuner.graph import load_onnx
    from tuner.module import random_inputs

    threads, rounds = asked.threads, asked.rounds
    contenders = prepared(model, folder, threads, db)
    inputs = random_inputs(load_onnx(model).inputs, 0)
    write_arrays(folder / "inputs.npz", inputs)
    for i, array in enumerate(inputs.values()):
        (folder / f"input{i}.bin").write_bytes(array.tobytes())
    onnxruntime_program(folder)
    contenders |= for_ncnn(model, folder, inputs) | for_litert(model, folder, inputs, asked.onnx2tf)
    found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in contenders}
    for _ in range(rounds):
        for kind, path in contenders.items():
            found[kind].append(started(kind, path, folder / "inputs.npz", threads))
            time.sleep(0.2)
    rows: list[dict[str, Any]] = []
    for kind, runs in found.items():
        each = {
            "start_ms": [1e3 * run["start"] for run in runs],
            "memory_mib": [run["peak"] / 2**20 for run in runs],
            "latency_ms": [1e3 * median(run["seconds"]) for run in runs],
        }
        row = {
            "model": model.stem,
            "contender": kind,
            "start_ms": 1e3 * median(run["start"] for run in runs),
            "memory_mib": median(run["peak"] for run in runs) / 2**20,
            "own_mib": median(run["peak"] - run["before"] for run in runs) / 2**20,
            "latency_ms": 1e3 * median(seconds for run in runs for seconds in run["seconds"]),
            "bytes": library_bytes(kind, contenders[kind], runs[0]["maps"]),
        }
        rows.append({**row, "each": each})
        print("  ".join(f"{v:10.3f}" if isinstance(v, float) else f"{v!s:>14}" for v in row.values()), flush=True)
    return rows


def ratio(ours: Mapping[str, Any], theirs: Mapping[str, Any], what: str) -> float:
    """Return the median of the ratios of all rounds: a machine may be slower for some of them."""
    return median(our / their for our, their in zip(ours["each"][what], theirs["each"][what], strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(MODELS), help="networks of the zoo")
    parser.add_argument("--onnx", default="", help="files, in place of the networks of the zoo")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--db", help="tuning database (default: an empty one)")
    parser.add_argument("--onnx2tf", help="the program that converts networks for LiteRT")
    parser.add_argument("--folder", type=Path, help="keep what is made here")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(exist_ok=True)
        run(options, folder)


def run(options: argparse.Namespace, folder: Path) -> None:
    from tuning_db.store import open_db

    db = options.db or str(folder / "empty.db")
    if options.db is None:
        open_db(Path(db)).close()
    files = [Path(name) for name in options.onnx.split(",") if name] or zoo_files(options.only.split(","), folder)
    rows: list[dict[str, Any]] = []
    summary: dict[str, float] = {}
    print("         model       contender    start ms  memory MiB     own MiB  latency ms           bytes")
    for file in files:
        place = folder / file.stem
        place.mkdir(exist_ok=True)
        mine = measured(file, place, options, db)
        rows += mine
        by = {row["contender"]: row for row in mine}
        summary[f"library_bytes_{file.stem}"] = by["c"]["bytes"]
        summary[f"start_vs_ort_{file.stem}"] = ratio(by["light"], by["onnxruntime"], "start_ms")
        summary[f"memory_vs_ort_{file.stem}"] = ratio(by["light"], by["onnxruntime"], "memory_mib")
        for what in ("start_ms", "memory_mib", "latency_ms"):
            short = what.partition("_")[0]
            summary[f"{short}_c_vs_ort_c_{file.stem}"] = ratio(by["c"], by["onnxruntime_c"], what)
        summary[f"latency_vs_module_{file.stem}"] = ratio(by["c"], by["module"], "latency_ms")
    result = {"summary": summary, "rows": rows, "machine": machine()}
    print(json.dumps(result["summary"], indent=1))
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
