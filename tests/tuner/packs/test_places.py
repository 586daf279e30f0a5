"""Places of packs: real folders, a real git repository, and a real web server with TLS."""

from __future__ import annotations

import json
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tuner.devices.board.pairing import certificate
from tuner.errors import BadInput
from tuner.packs import places
from tuner.packs.places import INDEX, fetch, push

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    path = tmp_path / "laptop.pack"
    path.write_bytes(b"what a pack holds")
    return path


class _Quiet(SimpleHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/leads-away.pack":
            self.send_response(302)
            self.send_header("Location", "http://127.0.0.1:9/laptop.pack")
            self.end_headers()
        else:
            super().do_GET()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Path]]:
    """The address and the folder of a web server whose certificate this process takes."""
    folder, own, authority = tmp_path / "www", tmp_path / "own.pem", tmp_path / "ca.pem"
    folder.mkdir()
    public, private = certificate("localhost")
    own.write_bytes(private)
    authority.write_bytes(public)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder)))
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    yield f"https://localhost:{server.server_port}", folder
    server.shutdown()
    server.server_close()


def test_a_folder_has_what_was_pushed(pack: Path, tmp_path: Path) -> None:
    place = tmp_path / "shared" / "packs"
    assert push(pack, str(place)) == str(place / "laptop.pack")
    assert fetch(str(place)) == {f"{place}/laptop.pack": b"what a pack holds"}
    assert fetch(str(pack)) == {str(pack): b"what a pack holds"}
    pack.write_bytes(b"newer")
    push(pack, str(place))
    (place / "notes.txt").write_text("no pack")
    assert list(fetch(str(place)).values()) == [b"newer"]
    assert json.loads((place / INDEX).read_text()) == ["laptop.pack"]


def test_a_web_server_serves_what_was_pushed(pack: Path, served: tuple[str, Path]) -> None:
    address, folder = served
    push(pack, str(folder / "packs"))
    assert fetch(f"{address}/packs") == {f"{address}/packs/laptop.pack": b"what a pack holds"}
    assert fetch(f"{address}/packs/laptop.pack") == {f"{address}/packs/laptop.pack": b"what a pack holds"}


def test_what_a_web_server_says_instead_is_told(served: tuple[str, Path]) -> None:
    address, folder = served
    with pytest.raises(BadInput, match=r"packs\.json: the server says 404"):
        fetch(address)
    with pytest.raises(BadInput, match=r"cannot be fetched|which is not https"):
        fetch(f"{address}/leads-away.pack")
    for text in ("nonsense", '{"a": 1}', '["../../secret.pack"]', '["x.txt"]'):
        (folder / INDEX).write_text(text)
        with pytest.raises(BadInput, match=r"packs\.json: is not what `tune pack push` writes"):
            fetch(address)
    (folder / INDEX).write_text("[]")
    with pytest.raises(BadInput, match="has no packs"):
        fetch(address)


def test_a_server_that_nobody_vouches_for_is_not_taken(
    pack: Path, served: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, folder = served
    push(pack, str(folder))
    monkeypatch.delenv("SSL_CERT_FILE")
    with pytest.raises(BadInput, match=r"cannot be fetched: .*certificate"):
        fetch(f"{address}/laptop.pack")


@needs_git
def test_a_repository_has_what_was_pushed(pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "someone")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "someone@example.org")
    repository = tmp_path / "packs.git"
    subprocess.run(["git", "init", "--quiet", "--bare", str(repository)], check=True)
    place = f"git+file://{repository}"
    assert push(pack, place) == f"laptop.pack in {place}"
    push(pack, str(repository))  # the same once more changes nothing
    pack.rename(tmp_path / "other.pack")
    push(tmp_path / "other.pack", place)
    assert list(fetch(str(repository))) == [f"{repository}/laptop.pack", f"{repository}/other.pack"]
    log = subprocess.run(
        ["git", "-C", str(repository), "log", "--format=%s"], capture_output=True, text=True, check=True
    )
    assert log.stdout.splitlines() == ["Add the pack other.pack", "Add the pack laptop.pack"]


@needs_git
def test_git_that_fails_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="git clone failed: ") as refused:
        fetch(f"git+file://{tmp_path}/missing.git")
    assert "\n" not in str(refused.value)


def test_git_that_is_missing_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BadInput, match="git is not installed"):
        fetch("git@example.org:packs.git")


def test_what_is_no_place_is_refused(pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    for place, says in (
        ("nowhere", "there is no such file or folder"),
        (str(tmp_path / "empty"), "has no packs"),
        ("http://example.org/packs", "only https:// and git"),
        ("ftp://example.org/x.pack", "only https:// and git"),
    ):
        with pytest.raises(BadInput, match=says):
            fetch(place)
    with pytest.raises(BadInput, match="pushed to a folder or a git repository"):
        push(pack, "https://example.org/packs")
    with pytest.raises(BadInput, match=r"has to end in \.pack"):
        push(pack.rename(tmp_path / "x.txt"), str(tmp_path / "empty"))
    monkeypatch.setattr(places, "MOST_BYTES", 3)
    with pytest.raises(BadInput, match="which no pack is"):
        fetch(str(tmp_path / "x.txt"))
