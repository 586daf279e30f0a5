"""The server of an export answers what the module computes, refuses what does not fit, and says its latency."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.board_agent.support import free_port
from tests.tuner.export.support import Made


@pytest.fixture
def port(tiny: Made) -> Iterator[int]:
    port = free_port()
    command = [sys.executable, str(tiny.folder / "serve.py"), "--port", str(port), "--contexts", "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == f"serving tiny on http://127.0.0.1:{port}\n"
        yield port
        server.terminate()


def posted(port: int, body: bytes) -> bytes:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/run", body, method="POST")
    with urllib.request.urlopen(request) as answer:
        return bytes(answer.read())


def test_it_serves(port: int, tiny: Made) -> None:
    inputs, packed = tiny.inputs(), io.BytesIO()
    np.savez(packed, **inputs)  # type: ignore[arg-type]
    with np.load(io.BytesIO(posted(port, packed.getvalue()))) as outputs:
        found = dict(outputs)
    wanted = tiny.loaded()(inputs)
    assert {name: value.tobytes() for name, value in found.items()} == {n: v.tobytes() for n, v in wanted.items()}
    for body, line in ((b"no arrays", "allow_pickle"), (packed.getvalue().replace(b"data", b"dada"), "takes data")):
        with pytest.raises(urllib.error.HTTPError) as refused:
            posted(port, body)
        assert refused.value.code == 400
        assert line in refused.value.read().decode()
    measured = subprocess.run(
        [sys.executable, str(Path(tiny.folder) / "serve.py"), "--measure", "40", "--port", str(port)],
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(measured.stdout)
    assert found["runs"] == 40
    assert 0 < found["p50"] <= found["p90"] <= found["p99"]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/latency") as answer:
        assert json.loads(answer.read())["runs"] == 41
