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
    """Return the stored names of a kind: searchers, networks, profiles, vendors, peers or operators.

    Raises KeyError for another kind.
    """
    return tuple(_stored()[kind])


def operator_shapes() -> dict[str, str]:
    """Return what `tune op OPERATOR --shape` takes for each operator without a weight: ROWS,LENGTH for example."""
    return dict(_stored()["operators"])


def registered() -> dict[str, dict[str, str]]:
    """Return the names that the registries have now, by kind; operators with the sizes that they take."""
    import vision_ops  # noqa: F401  registers the operators
    from templates.operator import all_operators
    from tuner.devices.profiles import all_profiles
    from tuner.report.peers import peer_names
    from tuner.search import searcher_names
    from tuner.vendors import VENDORS
    from tuner.zoo import names

    kinds = {
        "searchers": searcher_names(),
        "networks": sorted(names()),
        "profiles": [profile.name for profile in all_profiles()],
        "vendors": list(VENDORS),
        "peers": list(peer_names()),
    }
    operators = {operator.op: ",".join(operator.view.sizes()).upper() for operator in all_operators()}
    return {**{kind: dict.fromkeys(found, "") for kind, found in kinds.items()}, "operators": operators}


if __name__ == "__main__":
    _FILE.write_text(json.dumps(registered(), indent=1) + "\n", encoding="utf-8")
