"""What became of each case of the suite, kept in expected.txt: a line for each, "pass NAME" or "refused NAME: REASON".

The file may only get better: a case that passes has to go on passing, one that is refused may pass one day, and then
the file has to say so. `python -m tests.onnx_suite.expectations` runs all cases, prints a table and writes it anew.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from pathlib import Path

from tests.onnx_suite.cases import case_named, names
from tests.onnx_suite.outcome import PASS, REFUSED, Outcome, outcome_of
from tests.templates.support import host_target

FILE = Path(__file__).with_name("expected.txt")


def expectations() -> dict[str, Outcome]:
    """The outcome of each case by its name."""
    found = {}
    for line in FILE.read_text().splitlines():
        status, _, rest = line.partition(" ")
        name, _, reason = rest.partition(": ")
        found[name] = Outcome(status, reason)
    return found


def main() -> int:
    """Run all cases, say what became of them, and write the file; the exit status is 1 if one is wrong or crashes."""
    found: dict[str, Outcome] = {}
    by_operator: dict[str, Counter[str]] = defaultdict(Counter)
    target = host_target()
    for name in names():
        print(f"\r{len(found)} {name:100.100}", end="", file=sys.stderr, flush=True)
        case = case_named(name)
        found[name] = outcome_of(case, target)
        by_operator[case.operator][found[name].status] += 1
    print(file=sys.stderr)
    for operator, counts in sorted(by_operator.items()):
        print(f"{operator:60} " + ", ".join(f"{status} {n}" for status, n in sorted(counts.items())))
    for kind in dict.fromkeys(name.partition("/")[0] for name in found):
        counts = Counter(o.status for name, o in found.items() if name.startswith(f"{kind}/"))
        print(f"{kind}: " + ", ".join(f"{status} {n}" for status, n in sorted(counts.items())))
    bad = {name: o for name, o in found.items() if o.status not in (PASS, REFUSED)}
    for name, outcome in bad.items():
        print(f"{outcome.status} {name}: {outcome.reason}")
    lines = [f"{o.status} {name}" + (f": {o.reason}" if o.reason else "") for name, o in found.items()]
    if not bad:
        FILE.write_text("\n".join(lines) + "\n")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
