"""Runs Tencent's ncnn on the CPU, held to float32, on what pnnx makes of the ONNX file."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from tuner.report.peers.base import Inference, Shapes, output_names


class Ncnn:
    """A peer that runs ncnn."""

    name = "ncnn"
    modules: tuple[str, ...] = ("ncnn", "pnnx")
    # pnnx names torch as a requirement, which only its Python functions need.
    install = "pip install ncnn; pip install --no-deps pnnx"

    def version(self) -> str:
        import ncnn

        return f"ncnn {ncnn.__version__}"

    def open(self, source: Path, threads: int, shapes: Shapes) -> Inference:
        """Load the file as `Peer.open` does. ncnn has no axis of a batch, so all first axes have to be 1. Raises
        RuntimeError if one is not, or if pnnx cannot convert the file."""
        import ncnn

        if any(shape[:1] != (1,) for shape in shapes.values()):
            raise RuntimeError("ncnn runs one sample at a time")
        network = ncnn.Net()
        network.opt.num_threads = threads
        network.opt.use_fp16_packed = network.opt.use_fp16_storage = network.opt.use_fp16_arithmetic = False
        with TemporaryDirectory() as folder:
            _convert(source, shapes, Path(folder))
            network.load_param(f"{folder}/network.ncnn.param")
            network.load_model(f"{folder}/network.ncnn.bin")
        names, outputs = list(shapes), output_names(source)

        def infer(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
            extractor = network.create_extractor()
            for name, blob in zip(names, network.input_names(), strict=True):
                extractor.input(blob, ncnn.Mat(np.ascontiguousarray(inputs[name][0])))
            found = [extractor.extract(blob)[1] for blob in network.output_names()]
            return {name: np.array(result)[None] for name, result in zip(outputs, found, strict=True)}

        return infer


def _convert(source: Path, shapes: Shapes, folder: Path) -> None:
    """Write network.ncnn.param and network.ncnn.bin to the folder. pnnx writes beside the file that it reads."""
    found = find_spec("pnnx")
    assert found is not None
    assert found.origin is not None
    (folder / "network.onnx").symlink_to(source.resolve())
    sizes = ",".join(str(list(shape)).replace(" ", "") for shape in shapes.values())
    command = [str(Path(found.origin).parent / "pnnx"), "network.onnx", f"inputshape={sizes}", "fp16=0"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode or not (folder / "network.ncnn.bin").exists():
        lines = (done.stderr.strip() or done.stdout.strip() or f"exit status {done.returncode}").splitlines()
        raise RuntimeError(f"pnnx cannot convert the file: {lines[-1]}")
