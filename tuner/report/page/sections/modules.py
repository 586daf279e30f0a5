"""Collects what the page shows of built modules. Start at `module_view`.

That is their layers, the times of other libraries for each layer, and their graphs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import select
from tvm.target import Target

from templates.template import AnchorTemplate, template_named
from templates.traffic import bytes_of
from tuner.module import Manifest, OperatorEntry, read_manifest
from tuner.precision import precision_of
from tuner.report.page.context import Context
from tuner.report.page.flow import flow_of
from tuner.report.page.names import device_text, flop_or_none
from tuner.report.page.nearness import nearness
from tuner.report.text import knobs_text, workload_text
from tuner.vendors import vendor_of
from tuner.vendors.base import PREFIX
from tuning_db import schema
from tuning_db.record import DeviceKey, Trial
from tuning_db.store import Store


def collect(context: Context) -> dict[str, Any]:
    """Return "modules": a `module_view` for each. Raises BadInput if one is no module."""
    return {"modules": [module_view(context.store, folder, context.benches) for folder in context.modules]}


def module_view(store: Store, folder: Path, benches: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """Return what the page shows of the module in `folder`.

    `benches` are what `tune bench --json` printed, for any modules. Raises BadInput if the folder is no module,
    DatabaseError if the store cannot be read.
    """
    manifest = read_manifest(folder)  # this checks its files: the network is parsed for the graph
    bench = next((b for b in benches if Path(str(b.get("module"))).resolve() == folder.resolve()), None)
    devices = [DeviceKey.from_dict(processor.key) for processor in manifest.devices]
    vendors = _vendors(store)
    return {
        "folder": str(folder),
        "model": manifest.model["name"],
        "dtype": manifest.dtype,
        "threads": manifest.threads,
        "sizes": manifest.sizes and manifest.sizes.figures(),
        "devices": [
            {"name": f"{p.name} ({device_text(key)})", "short": p.name, "title": device_text(key)}
            for p, key in zip(manifest.devices, devices, strict=True)
        ],
        "vendors": vendors,
        "layers": [
            _layer(store, manifest, operator, devices=devices, vendors=vendors) for operator in manifest.operators
        ],
        "profile": bench and _profile(bench),
        "bench": bench and _bench(bench),
        "flow": flow_of(folder, manifest),
    }


def _layer(
    store: Store, manifest: Manifest, operator: OperatorEntry, *, devices: Sequence[DeviceKey], vendors: Sequence[str]
) -> dict[str, Any]:
    workload, device = operator.workload, devices[operator.device]
    return {
        "node": operator.node,
        "text": workload_text(workload),
        "precision": precision_of(workload.dtype),
        "template": operator.config and operator.config.template,
        "knobs": operator.config and knobs_text(operator.config.knobs),
        "layout": _layout(manifest, operator),
        "device": operator.device,
        "seconds": operator.seconds,
        "error": operator.error,
        "flop": flop_or_none(workload),
        "bytes": bytes_of(workload),
        "source": operator.source,
        "near": nearness(store, operator, device),
        "peers": {name: t.seconds for name in vendors if (t := _rival(store, operator, device, name)) is not None},
    }


def _rival(store: Store, operator: OperatorEntry, device: DeviceKey, vendor: str) -> Trial | None:
    """Return the library's best trial of the operator on this very device, or None."""

    def is_its(trial: Trial) -> bool:
        return vendor_of(trial.config.template) == vendor

    return store.best(operator.workload, device, usable=is_its)


def _vendors(store: Store) -> list[str]:
    """Return the libraries whose kernels were measured in any trial."""
    t = schema.trials
    with store.reading() as connection:
        names = connection.scalars(select(t.c.template).where(t.c.template.startswith(PREFIX)).distinct()).all()
    return sorted({vendor for name in names if (vendor := vendor_of(name))})


def _layout(manifest: Manifest, operator: OperatorEntry) -> str | None:
    """Return the layouts that a kernel reads and writes, as "NCHW16c -> NCHW16c", or None if no template tells."""
    if operator.config is None:
        return None
    if vendor_of(operator.config.template) is not None:
        return "plain -> plain"
    try:
        template = template_named(operator.config.template)
        if not isinstance(template, AnchorTemplate):
            return None
        target = Target(dict(manifest.devices[operator.device].target))
        layouts = template.layouts(operator.workload, target)
    except (KeyError, TypeError, ValueError):  # the template is a plugin's that is not here, or of another version
        return None
    blocks = (layouts.data.block, layouts.out.block)
    return " -> ".join(f"NCHW{block}c" if block else "plain" for block in blocks)


def _profile(bench: Mapping[str, Any]) -> dict[str, Any]:
    """Return the seconds of every call, and the device's peaks in operations a second, by precision."""
    profile = bench["profile"]
    calls = [{"name": c["name"], "function": c["function"], "seconds": c["seconds"]} for c in profile["calls"]]
    peaks = profile.get("peaks_gflops", {"float32": profile["peak_gflops"]})  # earlier versions tell float32's alone
    return {"peaks": {precision: peak * 1e9 for precision, peak in peaks.items()}, "calls": calls}


def _bench(bench: Mapping[str, Any]) -> dict[str, Any]:
    names = ("name", "version", "median_seconds", "percentile_seconds", "process_peak_bytes")
    # Earlier versions do not tell all of them.
    rows = [{"percentile_seconds": {}, **row} for row in (bench["ours"], *bench["peers"])]
    return {"threads": bench["threads"], "contenders": [{name: row.get(name) for name in names} for row in rows]}
