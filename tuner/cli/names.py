"""The names that a shell completes, in the file names.json beside this one.

Completing must be quick. The registries would import TVM or open drivers, so their names are written to the file once:
`python -m tuner.cli.names` does it, and tests/tuner/cli/test_completion.py compares the file with the registries.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

_FILE = Path(__file__).with_name("names.json")


@cache
def _stored() -> dict[str, list[str]]:
    stored: dict[str, list[str]] = json.loads(_FILE.read_text(encoding="utf-8"))
    return stored


def names_of(kind: str) -> tuple[str, ...]:
    """Return the stored names of a kind: searchers, networks, profiles, vendors or peers.

    Raises KeyError for another kind.
    """
    return tuple(_stored()[kind])


def registered() -> dict[str, list[str]]:
    """Return the names that the registries have now, by kind."""
    from tuner.devices.profiles import all_profiles
    from tuner.report.peers import peer_names
    from tuner.search import searcher_names
    from tuner.vendors import VENDORS
    from tuner.zoo import names

    return {
        "searchers": searcher_names(),
        "networks": sorted(names()),
        "profiles": [profile.name for profile in all_profiles()],
        "vendors": list(VENDORS),
        "peers": list(peer_names()),
    }


if __name__ == "__main__":
    _FILE.write_text(json.dumps(registered(), indent=1) + "\n", encoding="utf-8")
