"""An agent whose measurements take as long as recorded ones, for benchmarks/boards.py: everything else is real.

    python benchmarks/simulated_board.py SECONDS [options of the agent]

The process that runs kernels is this file too: it runs the candidate, and then sleeps.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from board_agent import bench, serve, session


class SimulatedBench(bench.Bench):
    seconds = 0.0

    def _repeat(self, message: dict[str, Any], parts: list[bytes]) -> Any:
        found = super()._repeat({**message, "repetition": {"most": 2}}, parts)
        time.sleep(self.seconds)
        return found


if __name__ == "__main__":
    seconds = sys.argv.pop(1)
    if sys.argv[1].isdecimal():  # the number of a socket: a session started this
        SimulatedBench.seconds = float(seconds)
        bench.Bench = SimulatedBench  # type: ignore[misc]
        bench.main()
    else:
        session.BENCH = [__file__, seconds]
        sys.exit(serve.main())
