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
from harness.testbed.link.hosts_link import find_interface
from harness.testbed.link.userspace.paths import PathCounters
from joulefeed.calls import CallError, SocketChannel, call

ANSWER_TIMEOUT_S: Final = 60.0
"""A link that is set to a far regime is measured up to three times."""


class SocketLink(Link):
    """The link behind a control socket.

    Args:
        compute: the node on this host.
        path: the control socket.

    Raises:
        TestbedError: nothing answers there.
    """

    kind = "relay"

    def __init__(self, compute: Node, path: Path) -> None:
        super().__init__()
        self.interface, self.header_bytes = find_interface(compute)
        self._path = path
        read_counters(path)
        self.floor_ms = ask(path, "describe").get("floor_ms")

    def set(self, regime: Regime, *, recalibrate: bool = False) -> None:
        """Give the link a regime's delay, rate, jitter and loss; its owner calibrates it."""
        set_regime(self._path, regime, recalibrate=recalibrate)

    def counters(self) -> LinkCounters:
        """Read the cumulative counters."""
        return read_counters(self._path)

    def describe(self) -> dict[str, object]:
        """Describe the link, as its owner does."""
        return {**ask(self._path, "describe"), "interface": self.interface, "notes": list(self._notes)}


def set_regime(path: Path, regime: Regime, *, recalibrate: bool = False) -> None:
    """Set the link behind a control socket to a regime, calibrated again where that is asked for.

    Raises:
        TestbedError: nothing answers there, or the link refuses.
    """
    ask(path, "set", regime=regime.model_dump(), recalibrate=recalibrate)


def read_counters(path: Path) -> LinkCounters:
    """Read the counters of the link behind a control socket.

    Raises:
        TestbedError: nothing answers there, or the link is broken.
    """
    found = ask(path, "counters")
    return LinkCounters(**{**found, "paths": tuple(PathCounters(**one) for one in found["paths"])})


def ask(path: Path, do: str, timeout_s: float = ANSWER_TIMEOUT_S, **arguments: Any) -> Any:
    """Call the process behind a control socket and return its answer.

    Raises:
        TestbedError: nothing answers there, or the answer is an error.
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
