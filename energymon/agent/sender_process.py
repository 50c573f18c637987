"""The sender as the agent's child: started, listened to, started again when it dies, and given time at the end."""

from __future__ import annotations

import json
import os
import signal
import sys
from asyncio import AbstractEventLoop
from collections.abc import Callable, Mapping
from typing import Final

from joulefeed.child import Child, ChildError

_RESTART_S: Final = 5.0
_MAX_RESTART_S: Final = 300.0
_REFUSED: Final = 2
"""Its exit status when settings, or another sender on the store, are in its way."""
_LEAVE_S: Final = 15.0
"""What a sender is given to send the rest after the agent's last tick; what it leaves stays in the store."""


class SenderProcess:
    """Runs `python -m energymon send` on the agent's store, with its settings in the environment alone."""

    def __init__(
        self, argv: list[str], settings: Mapping[str, str], report: Callable[[str, str], None], loop: AbstractEventLoop
    ) -> None:
        """Take its options and settings, and what takes the kind and the message of each event."""
        safe = ["-P"] if sys.flags.safe_path else []
        self._argv = [sys.executable, *safe, "-m", "energymon", "send", "--until-eof", *argv]
        self._environment = {**os.environ, **settings}
        self._report, self._loop = report, loop
        self._restart_s = _RESTART_S
        self._child: Child | None = None

    def start(self) -> None:
        """Start the process and listen to it in the loop; it is started again when it dies."""
        # In the agent's process group: a signal that ends the agent ends its sender.
        self._child = Child(self._argv, env=self._environment, own_group=False)
        self._loop.add_reader(self._child.output_fd, self._listen)

    def stop(self) -> list[str]:
        """Let the sender send the rest and end it; return its last messages."""
        if self._child is None:
            # It may have been in another's way a moment ago.
            self.start()
        assert self._child is not None
        with self._child as child:
            output = child.finish(_LEAVE_S)
            if output is None:
                child.signal(signal.SIGKILL)
                output = child.finish(_RESTART_S) or b""
        return [message for _, message in map(_state, output.splitlines())]

    def _listen(self) -> None:
        assert self._child is not None
        try:
            while (line := self._child.read_line(0)) is not None:
                self._report(*_state(line))
        except ChildError:
            # Its stdout has ended.
            self._loop.remove_reader(self._child.output_fd)
            status = self._child.stop()
            self._child = None
            # Settings that are refused are no better in five seconds; another sender on the store is gone by then.
            self._loop.call_later(self._restart_s, self.start)
            self._restart_s = min(2 * self._restart_s, _MAX_RESTART_S) if status == _REFUSED else _RESTART_S
            if status != _REFUSED:
                self._report("sender-died", f"the sender ended with status {status}; it is started again")


def _state(line: bytes) -> tuple[str, str]:
    """Return an event's kind and message from a line of the sender's."""
    try:
        state = json.loads(line)
        return f"sender-{state['state']}", str(state["message"])
    except (ValueError, KeyError, TypeError):
        return "sender-said", line.decode(errors="replace")
