"""An agent of a board that goes away, connection and all, whenever it is to do something with a library or a kernel
that has a certain text in it: the first argument is what it does, the second the text, the rest is the agent's."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from board_agent import serve, session


class FragileSession(session.Session):
    what, text = "", b""

    def _answer(self, message: dict[str, Any], parts: list[bytes]) -> session.Frame:
        if message.get("do") == self.what and any(self.text in part for part in parts):
            os.kill(os.getpid(), signal.SIGKILL)
        return super()._answer(message, parts)


if __name__ == "__main__":
    FragileSession.what, FragileSession.text = sys.argv[1], sys.argv[2].encode()
    session.Session = FragileSession  # type: ignore[misc]
    sys.exit(serve.main(sys.argv[3:]))
