"""Where packs are pulled from and pushed to: a file, a folder, an https address, or a git repository. Start at `fetch`.

A place's packs are the files NAME.pack of its folder. As a web server need not list a folder, `push` keeps their names
in `packs.json` there. What comes from a place is only bytes: `tuner.packs.pack` finds out whether they are a pack.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urljoin, urlsplit

from board_agent.parsing import parse_json
from tuner.errors import BadInput
from tuner.files import write_whole
from tuner.packs.pack import MOST_BYTES, SUFFIX

INDEX = "packs.json"
_FILE = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]*{re.escape(SUFFIX)}")
_SECONDS = 60.0  # that a server may be silent for
_GIT_SECONDS = 600.0
_GIT = "git+"


def fetch(place: str) -> dict[str, bytes]:
    """Return the packs of a place by how they are named in messages. Raises BadInput if there are none, or the place
    cannot be read."""
    if _is_git(place):
        with _clone(place) as folder:
            return _of_folder(folder, place)
    if "://" in place:
        return _of_address(place)
    path = Path(place)
    if path.is_dir():
        return _of_folder(path, place)
    if not path.exists():
        raise BadInput(f"{place}: there is no such file or folder; addresses begin with https:// or {_GIT}")
    return {place: _read(path)}


def push(pack: Path, place: str) -> str:
    """Copy a pack to a folder, which is made if it is missing, or to a git repository. Return where it is then. Raises
    BadInput if it cannot be written there."""
    content, name = _read(pack), pack.name
    if not _FILE.fullmatch(name):
        raise BadInput(f"{pack}: the name of a pack's file has to end in {SUFFIX} and begin with a letter or a digit")
    if _is_git(place):
        with _clone(place) as folder:
            _add(folder, name, content)
            _git("add", name, INDEX, folder=folder)
            if _git("status", "--porcelain", folder=folder):
                _git("commit", "--quiet", "-m", f"Add the pack {name}", folder=folder)
                _git("push", "--quiet", "origin", "HEAD", folder=folder)
        return f"{name} in {place}"
    if "://" in place:
        raise BadInput(f"{place}: packs are pushed to a folder or a git repository ({_GIT}https://...)")
    folder = Path(place)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"{place}: cannot be made a folder: {error.strerror}") from error
    _add(folder, name, content)
    return str(folder / name)


def _add(folder: Path, name: str, content: bytes) -> None:
    write_whole(folder / name, content)
    names = sorted(path.name for path in folder.iterdir() if _FILE.fullmatch(path.name))
    write_whole(folder / INDEX, f"{json.dumps(names, indent=1)}\n".encode())


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}") from error
    return _small(content, str(path))


def _small(content: bytes, title: str) -> bytes:
    if len(content) > MOST_BYTES:
        raise BadInput(f"{title}: is larger than {MOST_BYTES >> 20} MiB, which no pack is")
    return content


def _of_folder(folder: Path, place: str) -> dict[str, bytes]:
    found = sorted(path for path in folder.iterdir() if _FILE.fullmatch(path.name))
    if not found:
        raise BadInput(f"{place}: has no packs, which are files NAME{SUFFIX}")
    return {f"{place.rstrip('/')}/{path.name}": _read(path) for path in found}


def _of_address(address: str) -> dict[str, bytes]:
    if address.endswith(SUFFIX):
        return {address: _download(address)}
    base = address.rstrip("/") + "/"
    index = urljoin(base, INDEX)
    try:
        names = parse_json(_download(index))
        if not isinstance(names, list) or not all(isinstance(name, str) and _FILE.fullmatch(name) for name in names):
            raise ValueError("it is no list of packs")
    except ValueError as error:
        raise BadInput(f"{index}: is not what `tune pack push` writes: {error}") from error
    if not names:
        raise BadInput(f"{address}: has no packs")
    return {urljoin(base, name): _download(urljoin(base, name)) for name in names}


def _download(address: str) -> bytes:
    if urlsplit(address).scheme != "https":
        raise BadInput(f"{address}: only https:// and {_GIT}... are fetched")
    try:
        with urllib.request.urlopen(address, timeout=_SECONDS) as answer:
            if urlsplit(answer.url).scheme != "https":
                raise BadInput(f"{address}: leads to {answer.url}, which is not https://")
            return _small(answer.read(MOST_BYTES + 1), address)
    except urllib.error.HTTPError as error:
        raise BadInput(f"{address}: the server says {error.code} {error.reason}") from error
    except (OSError, ValueError) as error:  # URLError is an OSError
        raise BadInput(f"{address}: cannot be fetched: {getattr(error, 'reason', error)}") from error


def _is_git(place: str) -> bool:
    return place.startswith((_GIT, "git@")) or (place.endswith(".git") and not place.startswith("https://"))


@contextmanager
def _clone(place: str) -> Iterator[Path]:
    """Clone the newest commit of a repository into a folder, which is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="edgetune-packs-") as scratch:
        folder = Path(scratch) / "packs"
        _git("clone", "--quiet", "--depth", "1", "--", place.removeprefix(_GIT), str(folder))
        yield folder


def _git(*arguments: str, folder: Path | None = None) -> str:
    """Run git, which asks for nothing, and return what it prints. Raises BadInput with its last line if it fails."""
    where = [] if folder is None else ["-C", str(folder)]
    asks_nothing = {**os.environ, "GIT_TERMINAL_PROMPT": "0"}
    try:
        done = subprocess.run(
            ["git", *where, *arguments],
            env=asks_nothing,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=_GIT_SECONDS,
        )
    except FileNotFoundError as error:
        raise BadInput("git is not installed, which packs in a repository need") from error
    except subprocess.TimeoutExpired as error:
        raise BadInput(f"git {arguments[0]} was not done after {_GIT_SECONDS:g} s") from error
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
        raise BadInput(f"git {arguments[0]} failed: {said}")
    return done.stdout
