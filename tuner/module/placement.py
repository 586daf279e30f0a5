"""Find the devices of this machine that a saved module runs on. Start at `device_for`."""

from __future__ import annotations

from tvm.target import Target

from templates.gpu.limits import gpu_limits
from tuner.devices import Device, open_device
from tuner.errors import BadInput
from tuner.module.manifest import Processor
from tuning_db.record import DeviceKey


def device_for(processor: Processor) -> Device:
    """Return the GPU of this machine that is most like the one that the kernels were built for. That is the same
    device, else one of the same model, else the one of the same name. A name alone says little, because devices are
    renumbered when other drivers are installed.

    Raises BadInput if there is no device of this kind, or none that allows what the kernels may use.
    """
    built = DeviceKey.from_dict(processor.key)
    named = f"was built for {processor.name} ({built.model})"
    try:
        here = processor.kind.list_here()
        if not here:
            open_device(processor.name)
    except BadInput as error:
        raise BadInput(f"{named}: {error}") from None
    here.sort(key=lambda d: (d.key != built, d.key.model != built.model, d.name != processor.name))
    target = Target(dict(processor.target))
    for device in here:
        if allows(device.target, target):
            return device
    models = ", ".join(device.title for device in here)
    raise BadInput(f"{named}, whose kernels may use more than {models} allows; build it here")


def allows(here: Target, built: Target) -> bool:
    """Return whether a device with the target `here` runs kernels that were compiled for the target `built`."""
    has, needs = gpu_limits(here), gpu_limits(built)
    if has is None or needs is None:
        return has is needs
    return (
        here.attrs.get("arch") == built.attrs.get("arch")
        and has.max_threads >= needs.max_threads
        and has.local_memory_bytes >= needs.local_memory_bytes
        and set(has.subgroups) >= set(needs.subgroups)
        and has.fp16 >= needs.fp16
    )
