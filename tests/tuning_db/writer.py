"""A process that adds trials until it is killed: `python -m tests.tuning_db.writer DB LABEL [COUNT]`.

Prints "opening" first, then one line for each committed trial: the trial itself, as in a log.
"""

from __future__ import annotations

import sys
from itertools import count

from tests.tuning_db.made import config, trial
from tuning_db.logs import line_of
from tuning_db.record import Workload
from tuning_db.store import open_db


def main(url: str, label: str, limit: int | None) -> None:
    print("opening", flush=True)
    workload = Workload("conv2d", {"writer": label})
    with open_db(url) as store:
        for tile in count():
            if tile == limit:
                break
            made = trial(tile, workload=workload)
            store.begin(workload, made.device, [config(tile)])
            store.add(made)
            print(line_of(made), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else None)
