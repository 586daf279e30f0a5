"""The results of a bundle as they grow: a folder that a power cut or a full disk leaves whole. Start at `Journal`.

Lines of JSON, each on the disk before the next is written: {"begun": candidate}, {"candidate": ..., a result}, and
{"reference": seconds} of the kernel that never changes. What candidates computed lies beside, by its digest.
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
    """Kept in `folder`, which goes if there is nothing to keep; a line that was not written to its end is dropped. A
    context manager. Methods raise OSError."""

    def __init__(self, folder: str) -> None:
        os.makedirs(folder, exist_ok=True)
        self._folder = folder
        # Unbuffered: what a full disk did not take is not tried again when the file is closed.
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
        """The lines of candidates that have a result, by name."""
        return {line["candidate"]: line for line in self._lines if "candidate" in line}

    @property
    def begun(self) -> Counter[str]:
        """How often each candidate was begun."""
        return Counter(line["begun"] for line in self._lines if "begun" in line)

    @property
    def reference(self) -> float | None:
        """Seconds of the reference kernel when it was last measured."""
        return next((line["reference"] for line in reversed(self._lines) if "reference" in line), None)

    def _add(self, line: dict[str, Any]) -> None:
        data = json.dumps({**line, "at": time.time()}).encode() + b"\n"
        while data:
            data = data[self._file.write(data) :]
        os.fsync(self._file.fileno())
        self._lines.append(line)

    @contextlib.contextmanager
    def attempt(self, name: str) -> Iterator[None]:
        """While a candidate runs. It counts as begun only if the machine goes down in it: an error or an interrupt is
        not the candidate's doing."""
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
        """`outputs`: what the candidate computed."""
        digests = [hashlib.sha256(data).hexdigest() for data in outputs]
        for digest, data in zip(digests, outputs):
            path = os.path.join(self._folder, digest)
            if not os.path.exists(path):
                with whole_file(path) as file:
                    file.write(data)
        self._add({"candidate": name, **result, "outputs": digests})

    def pack(self, archive: str, bundle: str, facts: dict[str, Any]) -> None:
        """Write all to an archive. `bundle`: what the candidates came in."""
        outputs = {digest for line in self.results.values() for digest in line["outputs"]}
        with whole_file(archive) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as packed:
            packed.writestr(BUNDLE, bundle)
            packed.writestr(FACTS, json.dumps(facts))
            packed.write(os.path.join(self._folder, LINES), LINES)
            for digest in sorted(outputs):
                packed.write(os.path.join(self._folder, digest), OUTPUTS + digest)


def packed_results(archive: str, bundle: str) -> list[dict[str, Any]] | None:
    """The lines of candidates in the archive of a bundle's results; None where a file is no such archive."""
    try:
        with zipfile.ZipFile(archive) as packed:
            lines = [parse_json(line) for line in packed.read(LINES).splitlines()]
            found = [line for line in lines if "candidate" in line]
            return found if packed.read(BUNDLE).decode() == bundle else None
    except (FileNotFoundError, ValueError, KeyError, zipfile.BadZipFile):
        return None
