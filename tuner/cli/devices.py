"""`tune devices` lists the devices that can be tuned here, or with --profiles those that can be compiled for."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from tuner.cli.common import JsonOption, Output, check_parent_writable
from tuner.errors import BadInput

if TYPE_CHECKING:
    from tuner.devices import Device

EXAMPLES = ("tune devices", "tune devices --profiles", "tune devices --topology here.toml")


def command(
    profiles: Annotated[bool, typer.Option("--profiles", help="List the devices known for --target instead.")] = False,
    topology: Annotated[
        Path | None,
        typer.Option(
            "--topology", metavar="FILE.toml", help="Measure their peaks and the copies between them, and write that."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the devices found here, or the profiles of devices that are not."""
    if profiles and topology is not None:
        raise BadInput("--topology: profiles cannot be measured: leave out --profiles")
    if topology is not None:
        if topology.suffix != ".toml":
            raise BadInput(f"--topology {topology}: topologies are read from .toml files: give it such a name")
        check_parent_writable(topology)
    with Output(as_json) as out:
        if profiles:
            _show_profiles(out)
            return
        devices = _devices(out)
        _show_devices(devices, out)
        result = {"devices": [{"name": d.name, "threads": d.threads, **d.key.as_dict()} for d in devices]}
        if topology is not None:
            result |= _measured(devices, topology, out)
        out.result(result)


def _devices(out: Output) -> list[Device]:
    from tuner.devices import all_kinds, list_devices

    try:
        return list_devices()
    except BadInput as error:
        out.remark(f"the CPU alone is listed: {error}")
        return [device for kind in all_kinds() if kind.is_cpu for device in kind.list_here()]


def _show_devices(devices: list[Device], out: Output) -> None:
    table = Table(box=None)
    for title in ("device", "family", "model", "threads", "other"):
        table.add_column(title)
    for device in devices:
        key = device.key
        other = ", ".join(f"{name} {value}" for name, value in key.attrs.items() if name != "threads")
        table.add_row(device.name, key.family, key.model, str(device.threads), other)
    out.show(table)


def _measured(devices: list[Device], path: Path, out: Output) -> dict[str, Any]:
    """Measure the topology, write it to `path` and show it. Return it as JSON."""
    from tuner.studies.topology import as_toml
    from tuner.studies.topology.here import measured_topology

    found, copies = measured_topology(path.stem, devices, out.remark)
    path.write_text(as_toml(found), encoding="utf-8")
    table = Table(box=None)
    for title in ("device", "Gflop/s", "GB/s", "launch us", "memory", "GB", "computes on"):
        table.add_column(title)
    for spec, memory in zip(found.devices, found.memory_of, strict=True):
        numbers = f"{spec.flops / 1e9:.0f}", f"{spec.bandwidth / 1e9:.1f}", f"{1e6 * spec.overhead:.1f}"
        table.add_row(spec.name, *numbers, spec.memory, f"{found.memories[memory].bytes / 1e9:.1f}", spec.processor)
    out.show(table)
    table = Table(box=None)
    for title in ("copy from", "to", "latency us", "GB/s", "line's error"):
        table.add_column(title)
    for copy in copies:
        link = copy.link
        numbers = f"{1e6 * link.latency:.1f}", f"{link.bandwidth / 1e9:.1f}", f"{copy.error:.0%}"
        table.add_row(link.source, link.target, *numbers)
    out.show(table)
    out.show(f"wrote {path}: `tuner.studies.topology.topology_of` reads it")
    links = [{**_finite(asdict(c.link)), "sizes": c.sizes, "seconds": c.seconds, "error": c.error} for c in copies]
    specs = [{**asdict(d), "lacks": sorted(d.lacks)} for d in found.devices]
    memories = [_finite(asdict(m)) for m in found.memories]
    return {"topology": {"file": str(path), "devices": specs, "memories": memories, "links": links}}


def _finite(fields: dict[str, Any]) -> dict[str, Any]:
    """Replace infinite values with None, as JSON has no infinity."""
    return {name: None if value == float("inf") else value for name, value in fields.items()}


def _show_profiles(out: Output) -> None:
    from tuner.devices.profiles import all_profiles

    table = Table(box=None)
    for title in ("profile", "device", "kind", "units", "MHz", "items", "local KiB", "fp16", "host", "checked by"):
        table.add_column(title, overflow="fold")
    for profile in all_profiles():
        limits = profile.limits
        table.add_row(
            ", ".join((profile.name, *profile.aliases)),
            profile.title,
            f"{limits.kind} {profile.architecture}",
            str(profile.compute_units or "-"),
            str(profile.clock_mhz or "-"),
            str(limits.max_threads),
            str(limits.local_memory_bytes >> 10),
            "yes" if limits.fp16 else "no",
            " ".join(profile.host),
            ", ".join(profile.compilers),
        )
    out.show(table)
    out.result({"profiles": [{**asdict(profile), "key": profile.key().as_dict()} for profile in all_profiles()]})
