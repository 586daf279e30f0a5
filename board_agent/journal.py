"""This module keeps the results of a bundle while it is measured, in a folder. Start at `Journal`.

A power cut or a full disk leaves the folder consistent. It has a file with lines of JSON, each of which is on the disk
before the next is written: {"begun": candidate}, {"candidate": ..., a result}, and {"reference": seconds} of the
reference kernel. The outputs of candidates are files beside it, named by their digests.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import time
import zipfile
from collections import Counter
from typing import Any, Iterator, Sequence

from board_agent.disk import whole_file
from board_agent.parsing import parse_json

LINES = "results.jsonl"
OUTPUTS = "outputs/"
BUNDLE = "bundle.txt"
FACTS = "facts.json"


class Journal:
    """A journal that is kept in `folder`, and a context manager that closes it.

    The folder is removed at the end if there is nothing to keep. A line that was not written completely is dropped.
    Methods raise OSError.
    """

    def __init__(self, folder: str) -> None:
        os.makedirs(folder, exist_ok=True)
        self._folder = folder
        # The file is unbuffered, so that closing it does not write again what a full disk refused.
        self._file = open(os.path.join(folder, LINES), "a+b", buffering=0)  # noqa: SIM115
        self._file.seek(0)
        there = self._file.readall()
        whole = there.rpartition(b"\n")[0] + b"\n" if b"\n" in there else b""
        self._file.truncate(len(whole))
        self._lines = [parse_json(line) for line in whole.splitlines()]

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        if not self._lines:
            shutil.rmtree(self._folder)

    @property
    def results(self) -> dict[str, dict[str, Any]]:
        """Return the lines of candidates that have a result, by name."""
        return {line["candidate"]: line for line in self._lines if "candidate" in line}

    @property
    def begun(self) -> Counter[str]:
        """Count how often each candidate was begun."""
        return Counter(line["begun"] for line in self._lines if "begun" in line)

    @property
    def reference(self) -> float | None:
        """Return the seconds of the reference kernel when it was last measured, or None."""
        return next((line["reference"] for line in reversed(self._lines) if "reference" in line), None)

    def _add(self, line: dict[str, Any]) -> None:
        data = json.dumps({**line, "at": time.time()}).encode() + b"\n"
        while data:
            data = data[self._file.write(data) :]
        os.fsync(self._file.fileno())
        self._lines.append(line)

    @contextlib.contextmanager
    def attempt(self, name: str) -> Iterator[None]:
        """Note that a candidate runs in this block.

        An error or an interrupt is not the candidate's fault and removes the note. So it stays without a result only if
        the machine goes down.
        """
        size, count = os.fstat(self._file.fileno()).st_size, len(self._lines)
        try:
            self._add({"begun": name})
            yield
        except BaseException:
            self._file.truncate(size)
            del self._lines[count:]
            raise

    def add_reference(self, seconds: float) -> None:
        self._add({"reference": seconds})

    def add_result(self, name: str, result: dict[str, Any], outputs: Sequence[bytes]) -> None:
        """Store the result of a candidate, and `outputs`, which it computed."""
        digests = [hashlib.sha256(data).hexdigest() for data in outputs]
        for digest, data in zip(digests, outputs):
            path = os.path.join(self._folder, digest)
            if not os.path.exists(path):
                with whole_file(path) as file:
                    file.write(data)
        self._add({"candidate": name, **result, "outputs": digests})

    def pack(self, archive: str, bundle: str, facts: dict[str, Any]) -> None:
        """Write everything to an archive. `bundle` is the name of the bundle that the candidates came in."""
        outputs = {digest for line in self.results.values() for digest in line["outputs"]}
        with whole_file(archive) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as packed:
            packed.writestr(BUNDLE, bundle)
            packed.writestr(FACTS, json.dumps(facts))
            packed.write(os.path.join(self._folder, LINES), LINES)
            for digest in sorted(outputs):
                packed.write(os.path.join(self._folder, digest), OUTPUTS + digest)


def packed_results(archive: str, bundle: str) -> list[dict[str, Any]] | None:
    """Return the lines of candidates from the archive of a bundle's results, or None if the file is no such archive."""
    try:
        with zipfile.ZipFile(archive) as packed:
            lines = [parse_json(line) for line in packed.read(LINES).splitlines()]
            found = [line for line in lines if "candidate" in line]
            return found if packed.read(BUNDLE).decode() == bundle else None
    except (FileNotFoundError, ValueError, KeyError, zipfile.BadZipFile):
        return None
