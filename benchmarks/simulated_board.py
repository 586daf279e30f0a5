"""This program is an agent whose measurements take a given time, while everything else is real.

    python benchmarks/simulated_board.py SECONDS[,FACTOR,COUNT] [options of the agent]

This file is also the process that runs kernels: it runs the candidate and then sleeps for SECONDS. With FACTOR and
COUNT, the board becomes slower after COUNT measurements: all times that it reports are multiplied by FACTOR.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from board_agent import kernel_server as bench
from board_agent import serve, session


class SimulatedBench(bench.KernelServer):
    seconds, factor, left = 0.0, 1.0, 0.0

    def _repeat(self, message: dict[str, Any], parts: list[bytes]) -> Any:
        reference = bool(message.get("reference"))
        answer, more = super()._repeat(message if reference else {**message, "repetition": {"most": 2}}, parts)
        if not reference:
            time.sleep(self.seconds)
            self.left -= 1
        slower = self.factor if self.left < 0 else 1.0
        return {"times": [t * slower for t in answer["times"]]}, more


if __name__ == "__main__":
    behaviour = sys.argv.pop(1)
    if sys.argv[1].isdecimal():  # the number of a socket: a session started this
        seconds, *slowing = map(float, behaviour.split(","))
        SimulatedBench.seconds = seconds
        if slowing:
            SimulatedBench.factor, SimulatedBench.left = slowing
        bench.KernelServer = SimulatedBench  # type: ignore[misc]
        bench.main()
    else:
        session.KERNEL_SERVER = [__file__, behaviour]
        sys.exit(serve.main())
