"""Which tests pytest-xdist runs one after the other, in one of its workers.

The tests of a file stay together, for they share what the file's fixtures make; cases of a sampled matrix that share
nothing go to whoever is free. All that owns boards or counts on times is one group: beside each other they would
measure each other. Groups begin in the order of `_FIRST`, the longest before the others, so that no worker ends long
after the rest.
"""

from __future__ import annotations

import pytest

_ALONE = ("tests/tuner/fleet", "tests/board_agent", "tests/tuner/measure")
_FIRST = (*_ALONE, "tests/tuner/stages", "tests/tuner/cli", "tests/test_docs.py", "tests/tuner/report")


def _shares(item: pytest.Item) -> bool:
    """Return whether a test uses what is made once for its file."""
    used = item._fixtureinfo.name2fixturedefs.values()
    return any(definition.scope == "module" for definitions in used for definition in definitions)


class Groups:
    """Sets xdist's group of every test that has none of its own."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Runs before xdist reads the groups."""
        for item in items:
            file = item.nodeid.partition("::")[0]
            if item.get_closest_marker("xdist_group") is not None:
                continue
            if file.startswith(_ALONE):
                item.add_marker(pytest.mark.xdist_group("alone"))
            elif item.get_closest_marker("sampled") is None or _shares(item):
                item.add_marker(pytest.mark.xdist_group(file))
        items.sort(key=lambda item: next((i for i, place in enumerate(_FIRST) if item.nodeid.startswith(place)), 99))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Make sure that xdist has read the groups: it would spread the tests of a group without a word otherwise."""
        grouped = [item for item in session.items if item.get_closest_marker("xdist_group")]
        reads = not grouped or any("@" in item.nodeid for item in grouped)
        if getattr(session.config.option, "loadgroup", False) and not reads:
            raise pytest.UsageError("pytest-xdist ignores groups: it does not fit this version of pytest")
