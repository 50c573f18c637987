"""The link by the kernel's own netem: a shaper at each end."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from typing import Any

from harness.config.regime import Regime
from harness.errors import TestbedError
from harness.testbed.link.base import LinkCounters, ShapedLink
from harness.testbed.link.namespace import ETHERNET_HEADER_BYTES, INTERFACE, run_in
from harness.testbed.link.qdisc import INGRESS_INTERFACE
from harness.testbed.link.shaper import Shaper


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
