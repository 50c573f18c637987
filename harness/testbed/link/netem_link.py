"""The link as a veth pair with the kernel's own netem."""

from __future__ import annotations

import contextlib

from harness.config.regime import Regime
from harness.errors import TestbedError
from harness.testbed.link.base import LinkCounters, ShapedLink
from harness.testbed.link.namespace import ETHERNET_HEADER_BYTES, INTERFACE, run_in
from harness.testbed.link.qdisc import (
    INGRESS_INTERFACE,
    WantedLosses,
    cap_rate,
    delay_ingress,
    describe_qdiscs,
    qdisc_counts,
    redirect_ingress,
    segment_in_kernel,
)


class NetemLink(ShapedLink):
    """Each end caps what it sends with tbf and delays what it receives with netem.

    Raises:
        TestbedError: the kernel lacks veth, ifb, tbf or netem, or there is no permission.
    """

    kind = "netem"
    header_bytes = ETHERNET_HEADER_BYTES

    def __init__(self, storage_namespace: str, compute_namespace: str) -> None:
        super().__init__(storage_namespace, compute_namespace)
        self._losses = WantedLosses()
        try:
            peer = ["peer", "name", INTERFACE, "netns", compute_namespace]
            run_in(storage_namespace, ["ip", "link", "add", INTERFACE, "type", "veth", *peer])
            for namespace in self._namespaces:
                redirect_ingress(namespace)
            self._bring_up()
            self._measure_floor()
        except BaseException:
            self.close()
            raise

    def _cap(self, rate_gbit: float) -> None:
        for namespace in self._namespaces:
            cap_rate(namespace, rate_gbit)

    def _shape(self, regime: Regime, delay_ms: float, jitter_ms: float, loss_pct: float) -> None:
        assert regime.rate_gbit is not None
        self._losses.begin(self._netem_drops(), losing=loss_pct > 0)
        for namespace in self._namespaces:
            segment_in_kernel(namespace, every_packet=loss_pct > 0)
            delay_ingress(namespace, delay_ms, jitter_ms, loss_pct, regime.rate_gbit)

    def counters(self) -> LinkCounters:
        """Read the cumulative counters of the rate caps and, while the regime loses nothing, of netem."""
        caps = [qdisc_counts(namespace) for namespace in self._namespaces]
        # netem's queue is too long to overflow.
        drops = sum(cap.drops for cap in caps) + self._losses.count_unwanted(self._netem_drops())
        packets = sum(cap.packets for cap in caps)
        sent_bytes = sum(cap.bytes for cap in caps) - ETHERNET_HEADER_BYTES * packets
        return LinkCounters(drops=drops, packets=packets, bytes=sent_bytes, cpu_s=0.0, pause_s=None)

    def _netem_drops(self) -> int:
        return sum(qdisc_counts(namespace, INGRESS_INTERFACE).drops for namespace in self._namespaces)

    def describe(self) -> dict[str, object]:
        """Describe the parts of the link and its calibration."""
        delays = [describe_qdiscs(namespace, INGRESS_INTERFACE) for namespace in self._namespaces]
        return {**super().describe(), "delay_qdiscs": delays}

    def _remove(self) -> None:
        for namespace in self._namespaces:
            for interface in (INTERFACE, INGRESS_INTERFACE):
                # Deleting one end of the pair deletes the other; a namespace that is gone took its ends along.
                with contextlib.suppress(TestbedError):
                    run_in(namespace, ["ip", "link", "del", interface])
