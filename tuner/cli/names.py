"""What `--help` and completion in a shell say of the registries, in the file names.json beside this one.

Both must be quick. The registries would import TVM or open drivers, so their names are written to the file once:
`python -m tuner.cli.names` does it, and tests/tuner/cli/test_completion.py compares the file with the registries.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

_FILE = Path(__file__).with_name("names.json")


@cache
def _stored() -> dict[str, dict[str, str]]:
    stored: dict[str, dict[str, str]] = json.loads(_FILE.read_text(encoding="utf-8"))
    return stored


def names_of(kind: str) -> tuple[str, ...]:
    """Return the stored names of a kind: searchers, networks, profiles, cpus, vendors, peers, operators, or devices
    that are here (devices), elsewhere (remote_devices) or on boards (devices_on_boards).

    Raises KeyError for another kind.
    """
    return tuple(_stored()[kind])


def usages_of(kind: str) -> tuple[str, ...]:
    """Return how a person writes each name of a kind of devices, such as opencl:N for opencl:0."""
    return tuple(_stored()[kind].values())


def operator_shapes() -> dict[str, str]:
    """Return what `tune op OPERATOR --shape` takes for each operator without a weight: ROWS,LENGTH for example."""
    return dict(_stored()["operators"])


def registered() -> dict[str, dict[str, str]]:
    """Return the names that the registries have now, by kind; operators with the sizes that they take, and devices with
    how a person writes them."""
    import vision_ops  # noqa: F401  registers the operators
    from templates.operator import all_operators
    from tuner.devices import all_kinds, kinds_on_boards
    from tuner.devices.cpu import cpus_elsewhere
    from tuner.devices.profiles import all_profiles
    from tuner.report.peers import peer_names
    from tuner.search import searcher_names
    from tuner.vendors import VENDORS
    from tuner.zoo import names

    kinds = {
        "searchers": searcher_names(),
        "networks": sorted(names()),
        "profiles": [profile.name for profile in all_profiles()],
        "cpus": [cpu.name for cpu in cpus_elsewhere()],
        "vendors": list(VENDORS),
        "peers": list(peer_names()),
    }
    operators = {operator.op: ",".join(operator.view.sizes()).upper() for operator in all_operators()}
    devices = {
        "devices": [kind for kind in all_kinds() if not kind.is_remote],
        "remote_devices": [kind for kind in all_kinds() if kind.is_remote],
        "devices_on_boards": kinds_on_boards(),
    }
    return {
        **{kind: dict.fromkeys(found, "") for kind, found in kinds.items()},
        **{name: {kind.example: kind.usage for kind in found} for name, found in devices.items()},
        "operators": operators,
    }


if __name__ == "__main__":
    _FILE.write_text(json.dumps(registered(), indent=1) + "\n", encoding="utf-8")
