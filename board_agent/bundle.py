"""Measures what a bundle holds, on a device that no host can reach: `python3 BUNDLE -o RESULTS`.

A bundle (`tune bundle make`) is this package with candidates in it: a manifest, and blobs by their digests. Results are
one ZIP archive: a line for each candidate, and what it computed, which the host checks at `tune bundle import`. It goes
on where it was interrupted.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import socket
import sys
import tempfile
import threading
import time
import zipfile
from typing import Any, Iterator

from board_agent.facts import facts
from board_agent.line import Alone
from board_agent.session import Session
from board_agent.wire import Gone, receive, send

MANIFEST = "bundle/manifest.json"
BLOBS = "bundle/blobs/"
RESULTS = "results.jsonl"
OUTPUTS = "outputs/"
_MOST_BYTES = 1 << 30
_PREPARE_SECONDS = 300.0
_FAILED = ("died", "failed", "refused", "unfit", "late", "not_compiled")


class Failed(Exception):
    """What a candidate, or the device, answered instead of a result."""

    def __init__(self, answer: dict[str, Any]) -> None:
        super().__init__(str(answer))
        self.answer = answer


class Device:
    """A session of this very machine. A context manager."""

    def __init__(self, scratch: str) -> None:
        self._ours, theirs = socket.socketpair()
        self._theirs = theirs
        self._thread = threading.Thread(target=self._serve, args=(scratch,))
        self._thread.start()
        receive(self._ours, _MOST_BYTES)  # its greeting

    def _serve(self, scratch: str) -> None:
        try:
            Session(self._theirs, scratch, Alone()).serve()
        except Gone:
            self._theirs.close()

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *_: object) -> None:
        self._ours.close()
        self._thread.join()

    def ask(self, message: dict[str, Any], parts: Any = (), seconds: float = _PREPARE_SECONDS) -> Any:
        """Raises Failed."""
        send(self._ours, {**message, "seconds": seconds}, parts)
        answer, more = receive(self._ours, _MOST_BYTES)
        while answer.get("alive"):
            answer, more = receive(self._ours, _MOST_BYTES)
        if any(key in answer for key in _FAILED):
            raise Failed(answer)
        return answer, more


class Run:
    """One bundle on one device. Tensors are sent once for each process that runs kernels."""

    def __init__(self, bundle: zipfile.ZipFile, device: Device) -> None:
        self._bundle, self._device = bundle, device
        self.manifest: dict[str, Any] = json.loads(bundle.read(MANIFEST))
        self._sent: dict[str, int] = {}
        self._started = False
        self.described: dict[str, Any] = {}  # what the device's driver says of it

    def start(self) -> None:
        """Open the device and see that it can run a kernel that is known to be good. Raises Failed."""
        self._device.ask({"do": "start", "settings": self.manifest["settings"]})
        self._sent, self._started = {}, True
        self.described = self._device.ask({"do": "describe"})[0]
        self._tried(self.manifest["preflight"])
        self._device.ask({"do": "ready"})

    def _number(self, tensor: dict[str, Any], again: bool) -> int:
        """A tensor of a candidate; `again`: it is written to, so that every candidate has its own."""
        key = json.dumps([tensor, again], sort_keys=True)
        if key not in self._sent or again:
            number = self._sent.get(key, len(self._sent) + 1)
            given = {k: v for k, v in tensor.items() if k != "blob"}
            parts = [self._bundle.read(BLOBS + tensor["blob"])] if "blob" in tensor else []
            place = {"part": 0} if parts else {}
            self._device.ask({"do": "put", "tensors": [{**given, **place, "id": number}]}, parts)
            self._sent[key] = number
        return self._sent[key]

    def _tried(self, candidate: dict[str, Any]) -> tuple[dict[str, Any], list[bytes]]:
        """Loads a candidate, calls it once, and returns its call and what it computed."""
        self._device.ask({"do": "load", "id": 1}, [self._bundle.read(BLOBS + candidate["library"])])
        outputs = candidate["outputs"]
        numbers = [self._number(tensor, i in outputs) for i, tensor in enumerate(candidate["arguments"])]
        call = {"function": 1, "arguments": numbers}
        fill = [[numbers[i], value] for i, value in zip(outputs, candidate["fill"])]
        self._device.ask({"do": "call", **call, "fill": fill}, seconds=self.manifest["seconds"])
        found = [self._device.ask({"do": "get", "tensor": numbers[i]})[1][0] for i in outputs]
        return call, found

    def measure(self, candidate: dict[str, Any]) -> tuple[dict[str, Any], list[bytes]]:
        """A line of the results, and what the candidate computed."""
        outputs: list[bytes] = []
        try:
            if not self._started:
                self.start()
            call, outputs = self._tried(candidate)
            how = {"repetition": self.manifest["repetition"], "before": candidate["before"]}
            answer, _ = self._device.ask({"do": "repeat", **call, **how}, seconds=self.manifest["seconds"])
        except Failed as failed:
            self._started = False  # the next one gets a process of its own
            return {"failed": failed.answer}, outputs
        return {"times": answer["times"], "conditions": answer["conditions"]}, outputs


def known(path: str) -> set[str]:
    """The candidates that have a line in the results so far."""
    if not os.path.exists(path):
        return set()
    with open(path) as file:
        return {json.loads(line)["candidate"] for line in file if line.endswith("\n")}


def measured(run: Run, folder: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Every candidate that has no line yet, and its line when it is written."""
    lines = os.path.join(folder, RESULTS)
    done = known(lines)
    for place, candidate in enumerate(run.manifest["candidates"], 1):
        if candidate["name"] in done:
            continue
        line, outputs = run.measure(candidate)
        digests = [hashlib.sha256(data).hexdigest() for data in outputs]
        for digest, data in zip(digests, outputs):
            path = os.path.join(folder, digest)
            if not os.path.exists(path):
                with open(path + ".new", "wb") as file:
                    file.write(data)
                os.replace(path + ".new", path)
        with open(lines, "a") as file:
            file.write(
                json.dumps({"candidate": candidate["name"], "at": time.time(), **line, "outputs": digests}) + "\n"
            )
        yield place, line


def pack(folder: str, bundle: str, described: dict[str, Any], results: str) -> None:
    """The archive of all results."""
    with zipfile.ZipFile(results + ".new", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bundle.txt", bundle)
        archive.writestr("facts.json", json.dumps({**facts(), "described": described}))
        for name in sorted(os.listdir(folder)):
            archive.write(os.path.join(folder, name), name if name == RESULTS else OUTPUTS + name)
    os.replace(results + ".new", results)


def main(arguments: list[str] | None = None) -> int:
    """Measure what the bundle holds, those left over from before alone, and pack the results; the exit status."""
    parser = argparse.ArgumentParser(prog=os.path.basename(sys.argv[0]), description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-o", "--output", default="results.zip", metavar="RESULTS")
    given = parser.parse_args(arguments)
    with zipfile.ZipFile(sys.argv[0]) as bundle, tempfile.TemporaryDirectory() as scratch:
        os.chmod(scratch, 0o711)
        folder = given.output + ".partial"
        os.makedirs(folder, exist_ok=True)
        with Device(scratch) as device:
            run = Run(bundle, device)
            try:
                run.start()
            except Failed as failed:
                print(f"{parser.prog}: {next(iter(failed.answer.values()))}", file=sys.stderr)
                return 2
            count = len(run.manifest["candidates"])
            for place, line in measured(run, folder):
                said = f"{1e6 * min(line['times']):.1f} us" if "times" in line else str(line["failed"])[:100]
                print(f"{place} of {count}: {said}", file=sys.stderr, flush=True)
        pack(folder, run.manifest["name"], run.described, given.output)
    print(f"wrote {given.output}: take it back to the host, and there: tune bundle import {parser.prog} {given.output}")
    return 0


def run() -> None:
    """`main` as a program of its own."""
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("interrupted: the same command goes on", file=sys.stderr)
        sys.exit(130)
