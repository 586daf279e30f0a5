"""`tune devices`: the devices that can be tuned for here."""

from __future__ import annotations

from rich.table import Table

from tuner.cli.common import JsonOption, Output
from tuner.errors import BadInput


def command(as_json: JsonOption = False) -> None:
    """List the devices found here."""
    from tuner.devices import list_devices, open_device

    with Output(as_json) as out:
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
