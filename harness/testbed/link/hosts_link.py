"""The link between several hosts: netem on the data interface of each, or a delay line that carries the network."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from harness.config.regime import Regime
from harness.errors import TestbedError
from harness.testbed.base import Node
from harness.testbed.link.base import Link, LinkCounters, ShapedLink
from harness.testbed.link.control import ask, read_counters, set_regime
from harness.testbed.link.measure.roundtrip import Pinger, percentile
from harness.testbed.link.namespace import ETHERNET_HEADER_BYTES
from harness.testbed.link.shaper import RECORD
from harness.testbed.link.tcp import read_tcp
from joulefeed.child import Child, ChildError

_START_S: Final = 60.0
_ANSWER_S: Final = 20.0
_ARPHRD_ETHER: Final = 1
"""linux/if_arp.h"""


def _find_interface(compute: Node) -> tuple[str, int]:
    """Return the data interface of this host and the bytes of its header; raises TestbedError where there is none."""
    assert compute.interface is not None
    try:
        kind = int(Path(f"/sys/class/net/{compute.interface}/type").read_text())
    except OSError as error:
        raise TestbedError(
            f"host {compute.host}: joulefeed_data_interface={compute.interface}: {error.strerror}; expected an "
            f"interface of the data network (ip link lists them)"
        ) from error
    return compute.interface, ETHERNET_HEADER_BYTES if kind == _ARPHRD_ETHER else 0


class SocketLink(Link):
    """A delay line that another process owns, set through its control socket.

    Args:
        compute: the node on this host.
        path: the control socket.

    Raises:
        TestbedError: nothing answers there.
    """

    kind = "relay"

    def __init__(self, compute: Node, path: Path) -> None:
        super().__init__()
        self.interface, self.header_bytes = _find_interface(compute)
        self._path = path
        read_counters(path)
        self.floor_ms = ask(path, {"do": "describe"}).get("floor_ms")

    def set(self, regime: Regime, *, recalibrate: bool = False) -> None:
        """Give the link a regime's delay, rate, jitter and loss; its owner calibrates it."""
        set_regime(self._path, regime, recalibrate=recalibrate)

    def counters(self) -> LinkCounters:
        """Read the cumulative counters."""
        return read_counters(self._path)

    def describe(self) -> dict[str, object]:
        """Describe the link, as its owner does."""
        return {**ask(self._path, {"do": "describe"}), "interface": self.interface, "notes": list(self._notes)}


@dataclass(frozen=True, slots=True)
class _End:
    """The shaper of one host."""

    node: Node
    child: Child

    def ask(self, command: dict[str, object]) -> dict[str, Any]:
        try:
            self.child.send(json.dumps(command).encode() + b"\n")
            return self.answer(_ANSWER_S)
        except ChildError as error:
            raise self.failure(f"its shaper {error}") from error

    def answer(self, timeout_s: float) -> dict[str, Any]:
        found = self.child.ready(timeout_s)
        if "error" in found:
            raise self.failure(str(found["error"]))
        return found

    def failure(self, why: str) -> TestbedError:
        return TestbedError(f"link of host {self.node.host}: {why}")


class HostsNetemLink(ShapedLink):
    """Each host delays what comes from the other side by half of the round trip, and caps what it sends.

    Args:
        computes: the compute nodes, that on this host first.
        storages: the storage nodes on other hosts.

    Raises:
        TestbedError: a host has no netem, or its data interface cannot be used.
    """

    kind = "netem"

    def __init__(self, computes: Sequence[Node], storages: Sequence[Node]) -> None:
        super().__init__(f"host {storages[0].host}", f"host {computes[0].host}")
        self.interface, self.header_bytes = _find_interface(computes[0])
        self._peer = storages[0].address
        self._rate_gbit = 0.0
        self._delays = ""
        sides = [(node, storages) for node in computes] + [(node, computes) for node in storages]
        with ExitStack() as stack:
            self._ends = [_End(node, stack.enter_context(_shaper(node, peers))) for node, peers in sides]
            for end in self._ends:
                try:
                    self._delays = str(end.answer(_START_S)["delays"])
                except ChildError as error:
                    raise end.failure(f"its shaper {error}") from error
            self._measure_floor()
            self._stack = stack.pop_all()

    def _measure_rtt_ms(self, seconds: float) -> float:
        with Pinger(self._peer) as pinger:
            pinger.ping(0.0)
            return percentile(pinger.ping(seconds), 0.5) / 1e6

    def counters(self) -> LinkCounters:
        """Read the cumulative counters of all hosts."""
        found = self._ask_all({"do": "counters"})
        drops, packets, nbytes = (sum(one[key] for one in found) for key in ("drops", "packets", "bytes"))
        return LinkCounters(drops, packets, nbytes - packets * self.header_bytes, cpu_s=0.0, pause_s=None)

    def describe(self) -> dict[str, object]:
        """Describe the parts of the link and its calibration."""
        described = zip(self._ends, self._ask_all({"do": "describe"}), strict=True)
        return {
            "kind": self.kind,
            "interface": self.interface,
            "delays": self._delays,
            "floor_ms": self.floor_ms,
            "regime": None if self._regime is None else self._regime.name,
            "calibrations": [asdict(calibration) for calibration in self._calibrations],
            "qdiscs": {end.node.host: one["qdiscs"] for end, one in described},
            "compute_tcp": read_tcp(None),
            "notes": list(self._notes),
        }

    def _shape(self, regime: Regime, delay_ms: float, jitter_ms: float, loss_pct: float) -> None:
        shape = {"delay_ms": delay_ms, "jitter_ms": jitter_ms, "loss_pct": loss_pct, "rate_gbit": self._rate_gbit}
        self._ask_all({"do": "set", **shape})

    def _cap(self, rate_gbit: float) -> None:
        self._rate_gbit = rate_gbit

    def _ask_all(self, command: dict[str, object]) -> list[dict[str, Any]]:
        with ThreadPoolExecutor(len(self._ends)) as threads:
            return list(threads.map(lambda end: end.ask(command), self._ends))

    def _remove(self) -> None:
        self._stack.close()


def _shaper(node: Node, peers: Sequence[Node]) -> Child:
    assert node.interface is not None
    record = str(node.folder / RECORD)
    argv = [sys.executable, "-m", "harness.testbed.link.shaper", node.interface, record]
    argv += [peer.address for peer in peers]
    return node.start(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
