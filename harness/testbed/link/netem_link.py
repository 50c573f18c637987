"""The link by the kernel's own netem, a shaper at each end: of two namespaces, or of the data interfaces of hosts."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from abc import abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from harness.config.regime import Regime
from harness.errors import TestbedError
from harness.testbed.base import Node
from harness.testbed.link.base import LinkCounters, ShapedLink
from harness.testbed.link.delay_calibration import measure_rtt_ms
from harness.testbed.link.namespace import ETHERNET_HEADER_BYTES, INTERFACE, run_in
from harness.testbed.link.qdisc import INGRESS_INTERFACE
from harness.testbed.link.shaper import RECORD, Shaper
from harness.testbed.link.tcp import read_tcp
from joulefeed.calls import CallError, call
from joulefeed.child import Child, ChildError

_START_S: Final = 60.0
_ANSWER_S: Final = 20.0
_ARPHRD_ETHER: Final = 1
"""linux/if_arp.h"""


class ShapersLink(ShapedLink):
    """Each end caps what it sends and delays what it receives from the other side."""

    kind = "netem"
    header_bytes = ETHERNET_HEADER_BYTES
    _rate_gbit = 0.0

    @abstractmethod
    def _ask_all(self, do: str, **arguments: Any) -> list[Any]:
        """Return what a method of `Shaper` returns at each end."""

    def _cap(self, rate_gbit: float) -> None:
        self._rate_gbit = rate_gbit

    def _shape(self, regime: Regime, delay_ms: float, jitter_ms: float, loss_pct: float) -> None:
        self._ask_all("set", delay_ms=delay_ms, jitter_ms=jitter_ms, loss_pct=loss_pct, rate_gbit=self._rate_gbit)

    def counters(self) -> LinkCounters:
        """Read the cumulative counters of all ends."""
        found = self._ask_all("counters")
        drops, packets, nbytes = (sum(one[key] for one in found) for key in ("drops", "packets", "bytes"))
        return LinkCounters(drops, packets, nbytes - packets * self.header_bytes, cpu_s=0.0, pause_s=None)


class NetemLink(ShapersLink):
    """A veth pair between two network namespaces.

    Raises TestbedError when the kernel lacks veth, ifb, tbf or netem, or there is no permission.
    """

    def __init__(self, storage_namespace: str, compute_namespace: str) -> None:
        super().__init__(storage_namespace, compute_namespace)
        try:
            peer = ["peer", "name", INTERFACE, "netns", compute_namespace]
            run_in(storage_namespace, ["ip", "link", "add", INTERFACE, "type", "veth", *peer])
            self._shapers = [Shaper(namespace) for namespace in self._namespaces]
            self._bring_up()
            self._measure_floor()
        except BaseException:
            self.close()
            raise

    def _ask_all(self, do: str, **arguments: Any) -> list[Any]:
        return [getattr(shaper, do)(**arguments) for shaper in self._shapers]

    def describe(self) -> dict[str, object]:
        """Describe the parts of the link and its calibration."""
        return {**super().describe(), "qdiscs": self._ask_all("describe")}

    def _remove(self) -> None:
        for namespace in self._namespaces:
            for interface in (INTERFACE, INGRESS_INTERFACE):
                # Deleting one end of the pair deletes the other; a namespace that is gone took its ends along.
                with contextlib.suppress(TestbedError):
                    run_in(namespace, ["ip", "link", "del", interface])


class HostsNetemLink(ShapersLink):
    """Each host delays what comes from the other side by half of the round trip, and caps what it sends.

    The compute node on this host is the first one; the storage nodes are on other hosts.

    Raises TestbedError when a host has no netem or ifb, or its data interface cannot be used.
    """

    def __init__(self, computes: Sequence[Node], storages: Sequence[Node]) -> None:
        super().__init__(f"host {storages[0].host}", f"host {computes[0].host}")
        self.interface, self.header_bytes = find_interface(computes[0])
        self._peer = storages[0].address
        sides = [(node, storages) for node in computes] + [(node, computes) for node in storages]
        with ExitStack() as stack:
            self._ends = [(node, stack.enter_context(_shaper(node, peers))) for node, peers in sides]
            for node, child in self._ends:
                try:
                    child.ready(_START_S)
                except ChildError as error:
                    raise TestbedError(f"link of host {node.host}: its shaper {error}") from error
            self._measure_floor()
            self._stack = stack.pop_all()

    def _measure_rtt_ms(self, seconds: float) -> float:
        return measure_rtt_ms(None, self._peer, seconds)

    def _describe_ends(self) -> dict[str, object]:
        hosts = [node.host for node, _ in self._ends]
        return {"qdiscs": dict(zip(hosts, self._ask_all("describe"), strict=True)), "compute_tcp": read_tcp(None)}

    def _ask_all(self, do: str, **arguments: Any) -> list[Any]:
        def ask(end: tuple[Node, Child]) -> Any:
            node, child = end
            try:
                return call(child, do, timeout_s=_ANSWER_S, **arguments)
            except (CallError, ChildError) as error:
                raise TestbedError(f"link of host {node.host}: its shaper {error}") from error

        with ThreadPoolExecutor(len(self._ends)) as threads:
            return list(threads.map(ask, self._ends))

    def _remove(self) -> None:
        self._stack.close()


def _shaper(node: Node, peers: Sequence[Node]) -> Child:
    assert node.interface is not None
    record = str(node.folder / RECORD)
    argv = [sys.executable, "-m", "harness.testbed.link.shaper", node.interface, record]
    argv += [peer.address for peer in peers]
    return node.start(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, keep_stderr=True)


def find_interface(compute: Node) -> tuple[str, int]:
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
