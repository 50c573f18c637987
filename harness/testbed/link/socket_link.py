"""A delay line that another process owns, set through its control socket: calls as `joulefeed.calls` has them.

set(regime, recalibrate)    fields of Regime, such as {"name": "wan30ms", "rtt_ms": 30, "rate_gbit": 1}
counters()                  -> fields of LinkCounters
describe()                  -> what `Link.describe` returns
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any, Final

from harness.config.regime import Regime
from harness.errors import TestbedError
from harness.testbed.base import Node
from harness.testbed.link.base import Link, LinkCounters
from harness.testbed.link.netem_link import find_interface
from joulefeed.calls import CallError, SocketChannel, call

ANSWER_TIMEOUT_S: Final = 60.0
"""A link that is set to a far regime is measured up to three times."""


class SocketLink(Link):
    """The link of this host's compute node behind a control socket. Raises TestbedError when nothing answers there."""

    kind = "relay"

    def __init__(self, compute: Node, path: Path) -> None:
        super().__init__()
        self.interface, self.header_bytes = find_interface(compute)
        self._path = path
        self.counters()
        self.floor_ms = ask(path, "describe").get("floor_ms")

    def set(self, regime: Regime, *, recalibrate: bool = False) -> None:
        """Give the link a regime's delay, rate, jitter and loss; its owner calibrates it."""
        ask(self._path, "set", regime=regime.model_dump(), recalibrate=recalibrate)

    def counters(self) -> LinkCounters:
        """Read the cumulative counters."""
        return LinkCounters.of(ask(self._path, "counters"))

    def describe(self) -> dict[str, object]:
        """Describe the link, as its owner does."""
        return {**ask(self._path, "describe"), "interface": self.interface, "notes": list(self._notes)}


def ask(path: Path, do: str, timeout_s: float = ANSWER_TIMEOUT_S, **arguments: Any) -> Any:
    """Call the process behind a control socket and return its answer.

    Raises TestbedError when nothing answers there, or the answer is an error.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as connection:
            connection.settimeout(timeout_s)
            connection.connect(str(path))
            return call(SocketChannel(connection), do, timeout_s=timeout_s, **arguments)
    except CallError as error:
        raise TestbedError(f"control socket {path}: {error}") from error
    except (OSError, EOFError) as error:
        raise TestbedError(f"control socket {path}: {error}; expected the process that owns it to answer") from error
