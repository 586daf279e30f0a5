"""Readers of files and messages of others, each with real ones to start from. Start at `FORMATS`.

`prepare` makes the real ones, once for each process; `read` reads one that was changed. What it raises must be an
error that `tune` tells in one line.
"""

from __future__ import annotations

import gzip
import io
import json
import lzma
import random
import shutil
import socket
import sqlite3
import zipfile
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import numpy as np

from board_agent.backend import open_backend
from board_agent.kernel_server import KernelServer
from board_agent.wire import Gone, WireError, receive, send
from tests.board_agent.bundles import make_bundle, on_the_device
from tests.fuzz.mutations import bytes_mutated, json_mutated, json_text_mutated, text_of
from tests.tuner.graph.networks import Net
from tests.tuner.interop import logs as autotvm_logs
from tests.tuning_db.made import trial
from tuner.arrays import read_arrays
from tuner.cli.db import _decoded
from tuner.cli.limits import memory_limited
from tuner.devices import open_device
from tuner.errors import BadInput
from tuner.graph import load_onnx
from tuner.measure.boards.bundle import read_results
from tuner.module import build, load
from tuner.module.manifest import checksum_of
from tuner.report.page.collect import collect
from tuner.report.page.sections.modules import module_view
from tuning_db import importing, logs
from tuning_db.maintain import verify
from tuning_db.record import FailureKind, Trial
from tuning_db.rows import to_row
from tuning_db.store import open_db

_ONNX_BYTES = 2 << 30  # that reading a small model may take


class Format(ABC):
    """`cost`: of one input relative to the others, so that all of them get their share of a run's time."""

    cost: float = 1.0

    @staticmethod
    def make(materials: Path) -> None:
        """Make what takes long, once for all processes, in a folder of its own: nothing, where nothing does."""
        assert materials.is_dir()

    @abstractmethod
    def prepare(self, folder: Path, materials: Path) -> None:
        """Make real inputs, once for each process. `folder` is the process's own, and stays."""

    @abstractmethod
    def read(self, rng: random.Random) -> None:
        """Change a real input and read it."""


class Frames(Format):
    """Frames that a board's agent and its host receive, and requests that the agent's bench carries out."""

    cost = 1.0

    def prepare(self, folder: Path, materials: Path) -> None:
        part = np.arange(6, dtype=np.float32).tobytes()
        tensor = {"id": 1, "shape": [2, 3], "dtype": "float32", "part": 0}
        self._requests: list[tuple[dict[str, Any], list[bytes]]] = [
            ({"do": "put", "tensors": [tensor, {"id": 2, "shape": [4], "dtype": "int32", "cold": 64}]}, [part]),
            ({"do": "get", "tensor": 1}, []),
            ({"do": "damage", "tensors": [1]}, []),
            ({"do": "fill", "fill": [[1, 0.5]]}, []),
            ({"do": "drop", "tensors": [2], "functions": [1]}, []),
            ({"do": "load", "id": 1}, [b"\x7fELF"]),
            ({"do": "call", "function": 1, "arguments": [1], "fill": [[1, 0.0]]}, []),
            ({"do": "repeat", "function": 1, "arguments": [1], "repetition": {"least": 1}, "before": 2}, []),
            ({"do": "compare", "runs": [[1, [1]]], "order": [0, 0]}, []),
        ]
        self._bench = KernelServer(open_backend("cpu", "library", 1), folder)
        for message, parts in self._requests:
            self._bench.answer(message, parts)

    def read(self, rng: random.Random) -> None:
        message, parts = rng.choice(self._requests)
        if rng.random() < 0.5:
            changed = json_mutated(message, rng)
            if isinstance(changed, dict):
                answer, _ = self._bench.answer(changed, parts)
                assert isinstance(answer, dict)
            return
        ours, theirs = socket.socketpair()
        with ours, theirs:
            send(ours, message, parts)
            sent = theirs.recv(1 << 20)
            ours.sendall(bytes_mutated(sent, rng))
            ours.shutdown(socket.SHUT_WR)
            try:
                receive(theirs, 1 << 20)
            except (WireError, Gone) as error:
                raise BadInput(str(error)) from error


class Logs(Format):
    """Logs of ours and AutoTVM's, plain and compressed, imported into a database."""

    cost = 2.0

    def prepare(self, folder: Path, materials: Path) -> None:
        trials = [trial(1), trial(2, None), trial(3, 1e-4, None), trial(4, None, kind=FailureKind.WRONG_ANSWER)]
        self._lines = [logs.line_of(t) for t in trials]
        self._lines += [json.dumps(record) for record in autotvm_logs.ALL]
        self._path, self._folder = folder / "log", folder
        self._store = open_db(folder / "logs.db")

    def read(self, rng: random.Random) -> None:
        lines = [json_text_mutated(line, rng) for line in rng.sample(self._lines, 3)]
        data = b"\n".join([*lines, self._lines[0].encode()])
        way = rng.randrange(4)
        if way == 0:
            data = bytes_mutated(gzip.compress(data, 1), rng)
        elif way == 1:
            data = bytes_mutated(lzma.compress(data, preset=0), rng)
        self._path.write_bytes(data)
        with logs.opened(self._path) as found:
            report = importing.import_log(self._store, found, _decoded)
        assert all("\n" not in bad.reason for bad in report.bad), report.bad


class Arrays(Format):
    """Files of inputs."""

    def prepare(self, folder: Path, materials: Path) -> None:
        stream = io.BytesIO()
        np.savez(stream, x=np.arange(12, dtype=np.float32).reshape(3, 4), y=np.array([1, 2]))
        packed = io.BytesIO()
        np.savez_compressed(packed, x=np.arange(12, dtype=np.float32).reshape(3, 4))
        self._seeds = [stream.getvalue(), packed.getvalue()]
        self._path = folder / "a.npz"

    def read(self, rng: random.Random) -> None:
        self._path.write_bytes(bytes_mutated(rng.choice(self._seeds), rng))
        read_arrays(self._path)


class Modules(Format):
    """A built module with another manifest, or with a file that is not what its manifest says. Where somebody made the
    manifest's own checksum fit, it is only looked at: whoever can do that could as well have written the kernels."""

    cost = 2.0

    def prepare(self, folder: Path, materials: Path) -> None:
        net = Net()
        out = net.op("Relu", net.conv(net.input(1, 3, 8, 8), (3, 8)))
        build(net.graph(folder, out), open_device("cpu", 1), folder / "m")
        self._store = open_db(folder / "modules.db")
        self._good, self._bad = folder / "m", folder / "bad"
        self._manifest = json.loads((self._good / "manifest.json").read_text())
        shutil.copytree(self._good, self._bad)

    def read(self, rng: random.Random) -> None:
        manifest, other, way = self._bad / "manifest.json", None, rng.random()
        if way < 0.5:
            changed = json_mutated(self._manifest, rng)
            if isinstance(changed, dict):
                changed["checksum"] = checksum_of(changed)
            manifest.write_text(text_of(changed))
        elif way < 0.8:
            manifest.write_bytes(json_text_mutated(text_of(self._manifest), rng))
        else:
            other = rng.choice(sorted(self._manifest["files"]))
            (self._bad / other).unlink()  # a library that was loaded is another file
            (self._bad / other).write_bytes(bytes_mutated((self._good / other).read_bytes(), rng))
        try:
            if way < 0.5:
                module_view(self._store, self._bad)
                return
            module = load(self._bad, pin=False)
            module({info.name: np.zeros(info.shape, info.dtype) for info in module.manifest.inputs})
        finally:
            shutil.copyfile(self._good / "manifest.json", manifest)
            if other is not None:
                (self._bad / other).unlink()
                shutil.copyfile(self._good / other, self._bad / other)


class Databases(Format):
    """Tuning databases with other bytes, or whose rows another program has written."""

    cost = 6.0

    def prepare(self, folder: Path, materials: Path) -> None:
        self._folder = folder
        with open_db(folder / "good.db") as store:
            store.add_many([trial(1), trial(2, 2e-3), trial(3, None), trial(4, 1e-4, None), trial(5, throttled=True)])
            store.compact()
        self._seed = (folder / "good.db").read_bytes()

    def read(self, rng: random.Random) -> None:
        path = self._folder / "bad.db"
        for left in self._folder.glob("bad.db*"):
            left.unlink()
        if rng.random() < 0.4:
            path.write_bytes(bytes_mutated(self._seed, rng))
        else:
            path.write_bytes(self._seed)
            self._change(path, rng)
        with open_db(path, read_only=rng.random() < 0.5) as store:
            list(verify(store))
            store.stats()
            for device in store.devices():
                for workload in store.workloads(device):
                    store.best(workload, device)
            list(store.trials())
            collect(store)

    def _change(self, path: Path, rng: random.Random) -> None:
        columns = {
            "trials": ("config", "template", "template_version", "times", "seconds", "failure_kind", "failure_message",
                       "error", "seed", "searcher", "versions", "created", "workload_id", "device_id"),
            "workloads": ("key", "op"),
            "devices": ("key", "kind", "family"),
            "alembic_version": ("version_num",),
        }  # fmt: skip
        values = (
            None,
            "",
            "x",
            "soon",
            "[]",
            "[1,2]",
            "{}",
            '{"a":1}',
            "null",
            0,
            -1,
            1.5,
            2**62,
            10**17,
            b"\xff",
            "inf",
        )
        table = rng.choice(sorted(columns))
        with sqlite3.connect(path) as connection:
            connection.execute("PRAGMA ignore_check_constraints = 1")
            way = rng.randrange(6)
            try:
                if way == 0:
                    connection.execute(f"DROP TABLE {table}")
                elif way == 1:
                    connection.execute(f"ALTER TABLE {table} RENAME TO other")
                    connection.execute(f"CREATE VIEW {table} AS SELECT * FROM other")
                else:
                    column, value = rng.choice(columns[table]), rng.choice(values)
                    where = "" if rng.random() < 0.3 else " WHERE rowid = 1"
                    connection.execute(f"UPDATE {table} SET {column} = ?{where}", (value,))
            except sqlite3.IntegrityError:  # the database takes care of itself
                pass
        connection.close()


class Results(Format):
    """Bundles and what came back from a device."""

    cost = 4.0

    def prepare(self, folder: Path, materials: Path) -> None:
        self._folder = folder
        self._seeds = {name: self._entries(materials / name) for name in ("b.pyz", "r.zip")}

    @staticmethod
    def make(materials: Path) -> None:
        make_bundle(materials)
        done = on_the_device("b.pyz", "-o", "r.zip", cwd=materials)
        assert done.returncode == 0, done.stderr

    def _entries(self, path: Path) -> dict[str, bytes]:
        with zipfile.ZipFile(path) as archive:
            return {entry: archive.read(entry) for entry in archive.namelist() if not entry.startswith("board_agent/")}

    def read(self, rng: random.Random) -> None:
        changed = rng.choice(sorted(self._seeds))
        for name, entries in self._seeds.items():
            path = self._folder / f"bad-{name}"
            entries = dict(entries)
            if name == changed:
                said = [e for e in entries if e.endswith((".json", ".jsonl"))]
                entry = rng.choice([*said, rng.choice(list(entries))])
                entries[entry] = self._changed(entry, entries[entry], rng)
            with zipfile.ZipFile(path, "w") as archive:
                for entry, data in entries.items():
                    archive.writestr(entry, data)
            if name == changed and rng.random() < 0.3:
                path.write_bytes(bytes_mutated(path.read_bytes(), rng))
        found = read_results(self._folder / "bad-b.pyz", self._folder / "bad-r.zip")
        assert all(isinstance(t, Trial) and to_row(t) for t in found.trials)

    @staticmethod
    def _changed(entry: str, data: bytes, rng: random.Random) -> bytes:
        if entry.endswith(".jsonl"):
            lines = data.splitlines()
            at = rng.randrange(len(lines))
            lines[at] = json_text_mutated(lines[at].decode(), rng).replace(b"\n", b" ")
            return b"\n".join(lines)
        return json_text_mutated(data.decode(), rng) if entry.endswith(".json") else bytes_mutated(data, rng)


class Onnx(Format):
    """Models, as bytes and as their parts say something else."""

    cost = 6.0

    def prepare(self, folder: Path, materials: Path) -> None:
        self._path = folder / "bad.onnx"
        self._seeds = []
        for number in range(2):
            net = Net(seed=number, opset=17)
            value = net.op("Relu", net.conv(net.input(1, 3, 8, 8), (3, 8)))
            value = net.op("MaxPool", value, kernel_shape=[2, 2], strides=[2, 2])
            if number:
                value = net.op("Reshape", value, net.constant(np.array([1, -1])))
                value = net.op("Gemm", value, net.weight(5, 8 * 4 * 4), transB=1)
            self._seeds.append(net.save(folder / f"{number}.onnx", value).read_bytes())

    def read(self, rng: random.Random) -> None:
        self._path.write_bytes(bytes_mutated(rng.choice(self._seeds), rng))
        with memory_limited(self._path, _ONNX_BYTES):
            load_onnx(self._path)


FORMATS: dict[str, type[Format]] = {
    "frames": Frames,
    "logs": Logs,
    "arrays": Arrays,
    "modules": Modules,
    "databases": Databases,
    "results": Results,
    "onnx": Onnx,
}
