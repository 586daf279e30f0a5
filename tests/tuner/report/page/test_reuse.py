"""What the page says of kernels that nobody measured on their device: whose record each is, which times are known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.browser import needs_chromium, opened
from tests.manifests import write_manifest
from tests.tuning_db import made
from tuner.report.page import collect, render
from tuner.report.page.names import device_text
from tuner.report.text import workload_text
from tuning_db import shipped
from tuning_db.record import DeviceKey, Trial
from tuning_db.store import open_db

NOWHERE = "no device: its template's default"


def _changed(untuned: Path, folder: Path, device: DeviceKey, layers: dict[int, dict[str, Any]]) -> Path:
    """The module with a manifest that says another device, and other things of some layers, by their places; all others
    are timed."""
    folder.mkdir()
    manifest = json.loads((untuned / "manifest.json").read_text())
    manifest["devices"][0]["key"] = device.as_dict()
    for file in manifest["files"]:
        (folder / file).write_bytes((untuned / file).read_bytes())
    for place, operator in enumerate(manifest["operators"]):
        timed = {"source": "device", "seconds": 1e-3 * (place + 1), "error": 1e-6}
        operator.update(layers.get(place, timed))
    write_manifest(folder, manifest)
    return folder


def _of(trial: Trial, source: str) -> dict[str, Any]:
    return {
        "workload": trial.workload.as_dict(),
        "config": trial.config.as_dict(),
        "source": source,
        "seconds": trial.seconds if source == "family" else None,
    }


@needs_chromium
def test_layers_of_other_devices_records_are_told_and_times_that_lack_are_counted(untuned: Path, tmp_path: Path):
    sent = next(t for t in shipped.trials() if t.device.family == "x86_64-avx2")  # serves other models, too
    device = DeviceKey(sent.device.kind, sent.device.family, "built for", dict(sent.device.attrs))
    relative = DeviceKey(device.kind, device.family, "a relative", dict(device.attrs))
    near = made.trial(3, 1e-3, device=relative)
    default = {"source": "default", "seconds": None, "error": None}
    layers = {0: _of(sent, "shipped family"), 1: _of(near, "family"), 2: default}
    changed = _changed(untuned, tmp_path / "changed", device, layers)
    with open_db(tmp_path / "t.db") as store:
        store.add_many([near, made.trial(4, 1e-4, device=relative)])  # a faster one since: not what the layer has
        data = collect(store, [changed])
    (tmp_path / "page.html").write_text(render(data), encoding="utf-8")
    lost = data["modules"][0]["layers"][2]["text"]
    with opened((tmp_path / "page.html").as_uri()) as page:
        rows = list(
            zip(
                *(page.texts("reuse", column) for column in ("task", "used on", "measured on", "differs in")),
                strict=True,
            )
        )
        assert [row[:3] for row in rows] == [
            (
                workload_text(sent.workload),
                device_text(device),
                f"{device_text(sent.device)} (shipped with the package)",
            ),
            (workload_text(near.workload), device_text(device), device_text(relative)),
            (lost, device_text(device), NOWHERE),
        ]
        assert rows[1][3] == "model"
        count = len(data["modules"][0]["layers"])
        shown = page.page.locator("#module-0").inner_text()
        assert f"Times of {count - 2} of {count} layers are known" in shown
        known = [1e-3, *(1e-3 * (place + 1) for place in range(3, count))]
        shares = page.page.eval_on_selector_all(
            '[data-chart="calls-0"] rect', "bars => bars.map(b => +b.dataset.value)"
        )
        assert shares == sorted(known, reverse=True)[:15]
        page.page.fill("#filter-text", lost)
        assert page.texts("reuse", "task") == [lost]
        assert page.complaints == []


def test_a_module_whose_layers_were_all_measured_reuses_nothing(untuned: Path, tmp_path: Path):
    with open_db(tmp_path / "t.db") as store:
        data = collect(store, [_changed(untuned, tmp_path / "changed", made.LAPTOP, {})])
    assert data["reuse"] == []
