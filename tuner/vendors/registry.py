"""Find vendors by name, where a user asks for them or a module needs them. Start at `open_vendor`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module

from templates.template import register
from tuner.errors import BadInput
from tuner.vendors.base import PREFIX, VendorTemplate
from tuning_db.record import Config, Workload

# The command that installs each vendor's library.
VENDORS = {
    "onnxruntime": "pip install onnxruntime",
    "onednn": "pip install 'edgetune[torch]'",
    "clblast": "apt-get install libclblast1",
}


def open_vendor(name: str) -> str:
    """Register a vendor's templates, so that its kernels compete from now on. Return the module that does so in other
    processes. Raises BadInput for an unknown name and for a library that is not here."""
    templates_of(name)
    module = f"{__package__}.enabled.{name}"
    import_module(module)
    return module


def register_templates(name: str) -> None:
    """Register a library's templates. Raises BadInput as `templates_of` does."""
    for template in templates_of(name):
        register(template)


def templates_of(name: str) -> tuple[VendorTemplate, ...]:
    """Return the templates of a vendor that is here; from now on its kernels can be called. Raises BadInput for an
    unknown name and for a library that is not here."""
    if name not in VENDORS:
        raise BadInput(f"unknown vendor {name!r} (known: {', '.join(VENDORS)})")
    try:
        templates: tuple[VendorTemplate, ...] = import_module(f"{__package__}.{name}").TEMPLATES
    except ImportError as error:
        raise BadInput(f"vendor {name}: {error}; {VENDORS[name]}") from error
    return templates


def vendor_template(name: str, workload: Workload) -> VendorTemplate:
    """Return the vendor's template that computes a workload's operator. Raises BadInput as `templates_of` does."""
    return next(t for t in templates_of(name) if t.op == workload.op)


def vendor_of(template: str) -> str | None:
    """Return the vendor behind a template's name, or None if there is none."""
    return template.rpartition("_")[2] if template.startswith(PREFIX) else None


def vendors_of(configs: Iterable[Config | None]) -> dict[str, str]:
    """Return the vendors that configs call, with the versions that they were measured with."""
    named = [(vendor_of(config.template), config) for config in configs if config is not None]
    return {name: str(config["version"]) for name, config in named if name is not None}


def require(vendors: Mapping[str, str]) -> None:
    """Let the kernels of a module call its vendors. Raises BadInput if a vendor is not here, or has another version:
    its kernel would not be the one that was checked."""
    for name, version in vendors.items():
        here = templates_of(name)[0].version_here
        if here != version:
            raise BadInput(f"calls {name} {version}, here is {here}: install that version, or build the module again")
