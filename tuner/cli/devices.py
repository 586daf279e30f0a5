"""`tune devices`: the devices that can be tuned for here; with --profiles, those that can be compiled for."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table

from tuner.cli.common import JsonOption, Output
from tuner.errors import BadInput

EXAMPLES = ("tune devices", "tune devices --profiles")


def command(
    profiles: Annotated[bool, typer.Option("--profiles", help="List the devices known for --target instead.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List the devices found here, or the profiles of devices that are not."""
    with Output(as_json) as out:
        if profiles:
            _show_profiles(out)
        else:
            _show_devices(out)


def _show_devices(out: Output) -> None:
    from tuner.devices import list_devices, open_device

    try:
        devices = list_devices()
    except BadInput as error:
        out.remark(f"the CPU alone is listed: {error}")
        devices = [open_device("cpu")]
    table = Table(box=None)
    for title in ("device", "family", "model", "threads", "other"):
        table.add_column(title)
    for device in devices:
        key = device.key
        other = ", ".join(f"{name} {value}" for name, value in key.attrs.items() if name != "threads")
        table.add_row(device.name, key.family, key.model, str(device.threads), other)
    out.show(table)
    out.result({"devices": [{"name": d.name, "threads": d.threads, **d.key.as_dict()} for d in devices]})


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
