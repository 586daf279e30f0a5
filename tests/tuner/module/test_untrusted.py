"""A module that somebody else has made or changed: nothing of it is loaded that its manifest does not vouch for."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.manifests import write_manifest
from tests.tuner.graph.networks import Net
from tuner.devices import open_device
from tuner.errors import BadInput
from tuner.module import build, load, read_manifest
from tuner.report.page.sections.modules import module_view
from tuning_db.store import Store, open_db


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, net = tmp_path_factory.mktemp("built"), Net()
    out = net.op("Relu", net.conv(net.input(1, 3, 8, 8), (3, 8)))
    build(net.graph(folder, out), open_device("cpu", 1), folder / "m")
    return folder / "m"


@pytest.fixture
def module(built: Path, tmp_path: Path) -> Path:
    """A copy to be changed."""
    shutil.copytree(built, tmp_path / "m")
    return tmp_path / "m"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_db(str(tmp_path / "t.db")) as store:
        yield store


def change(module: Path, how: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest."""
    data = json.loads((module / "manifest.json").read_text())
    how(data)
    write_manifest(module, data)


def test_a_report_parses_no_network_whose_checksum_differs(module: Path, store: Store) -> None:
    assert module_view(store, module)["flow"]
    network = module / "network.ro"
    network.write_bytes(network.read_bytes()[:-9] + b"tampered!")
    with pytest.raises(BadInput, match=r"network\.ro: damaged"):
        module_view(store, module)


def test_a_library_that_the_manifest_does_not_name_is_not_loaded(module: Path) -> None:
    (pool,) = module.glob("parallel-*.so")
    stray = module / "parallel-0000000000000000.so"  # before the module's own by name
    shutil.copyfile(pool, stray)
    load(module)
    loaded = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith(".so")}
    assert str(stray.resolve()) not in loaded


@pytest.mark.parametrize("name", ["../elsewhere", "/etc/hostname", "sub/network.ro", "..", ""])
@pytest.mark.parametrize("field", ["files", "network", "kernels", "constants"])
def test_files_outside_of_the_folder_are_refused(module: Path, field: str, name: str) -> None:
    def point_elsewhere(data: dict[str, Any]) -> None:
        data["files"][name] = "0" * 64
        if field == "constants":
            data["constants"][0] = name
        elif field != "files":
            data[field] = name

    change(module, point_elsewhere)
    with pytest.raises(BadInput, match="is no file in the module's folder"):
        read_manifest(module)


@pytest.mark.parametrize("field", ["network", "kernels", "constants"])
def test_what_is_used_has_a_checksum(module: Path, field: str) -> None:
    def leave_out(data: dict[str, Any]) -> None:
        del data["files"][data["constants"][0] if field == "constants" else data[field]]

    change(module, leave_out)
    with pytest.raises(BadInput, match="has no checksum"):
        read_manifest(module)


@pytest.mark.parametrize("files", [None, [], "network.ro", 3])
def test_files_that_are_no_table_are_damage(module: Path, files: Any) -> None:
    change(module, lambda data: data.update(files=files))
    with pytest.raises(BadInput, match=r"manifest\.json: damaged"):
        read_manifest(module)


def test_a_pipe_in_place_of_a_file_holds_nobody_up(module: Path) -> None:
    (module / "network.ro").unlink()
    os.mkfifo(module / "network.ro")
    with pytest.raises(BadInput, match=r"network\.ro: not a file"):
        read_manifest(module)


def test_a_manifest_that_nests_without_end_is_damaged(module: Path) -> None:
    (module / "manifest.json").write_text('{"kind":' * 100_000)
    with pytest.raises(BadInput, match=r"manifest\.json: damaged"):
        read_manifest(module)
