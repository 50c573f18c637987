"""Kernel queueing disciplines on the link's interface: the rate cap (tbf) and the paper's delay (netem)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from harness.errors import TestbedError
from harness.testbed.link.namespace import INTERFACE, run_in

BURST_MIN_BYTES = 128 * 1024
"""Two segmentation super-packets with their headers; a smaller bucket would make tbf split each one."""
BURST_NS = 500_000
"""The bucket also holds this much of the rate, so that a late timer does not lower the rate."""
QUEUE_LIMIT_BYTES = 1 << 30
"""TCP small queues keep about 1 ms of each flow in the qdisc; the limit is only there to be far away."""
NETEM_LIMIT_PACKETS = 4_000_000
"""netem counts the packets in flight against its limit; tbf before it bounds their number."""
INGRESS_INTERFACE = "jf0in"
"""The ifb device through which netem sees what comes in."""


def kernel_has(namespace: str | None, qdisc: str, *arguments: str) -> bool:
    """Say whether the kernel knows the queueing discipline, by trying it on the namespace's loopback."""
    try:
        run_in(namespace, ["tc", "qdisc", "add", "dev", "lo", "root", qdisc, *arguments])
    except TestbedError as error:
        reason = str(error).lower()
        if "unknown" in reason or "no such file" in reason or "not supported" in reason:
            return False
        raise
    run_in(namespace, ["tc", "qdisc", "del", "dev", "lo", "root"])
    return True


def cap_rate(namespace: str | None, rate_gbit: float, interface: str = INTERFACE) -> None:
    """Cap what leaves the namespace over the interface at `rate_gbit` Gbit/s of IP packets.

    The queue is where TCP notices it (TCP small queues), so a saturating flow neither loses packets
    nor builds a standing queue.
    """
    bits_s = round(rate_gbit * 1e9)
    burst = max(BURST_MIN_BYTES, bits_s * BURST_NS // 8_000_000_000)
    shape = ["rate", f"{bits_s}bit", "burst", str(burst), "limit", str(QUEUE_LIMIT_BYTES)]
    run_in(namespace, ["tc", "qdisc", "replace", "dev", interface, "root", "handle", "1:", "tbf", *shape])


def delay_ingress(
    namespace: str | None,
    delay_ms: float,
    jitter_ms: float,
    loss_pct: float,
    rate_gbit: float,
    ingress: str = INGRESS_INTERFACE,
) -> None:
    """Delay what enters the namespace over the link with netem, in order.

    netem stands behind an ifb device on the receiving side because a packet that netem holds no longer counts
    against its sender's queue: on the sending side it would undo the back-pressure of the rate cap.
    """
    netem = ["delay", f"{delay_ms * 1000:.0f}us"]
    # A rate makes netem serialise, which keeps the order that jitter would break; twice the cap is idle.
    netem += [f"{jitter_ms * 1000:.0f}us", "distribution", "normal"] if jitter_ms else []
    netem += ["loss", "random", f"{loss_pct}%"] if loss_pct else []
    netem += ["rate", f"{2 * rate_gbit * 1e9:.0f}bit"] if jitter_ms else []
    netem += ["limit", str(NETEM_LIMIT_PACKETS)]
    run_in(namespace, ["tc", "qdisc", "replace", "dev", ingress, "root", "handle", "1:", "netem", *netem])


def redirect_ingress(
    namespace: str | None,
    interface: str = INTERFACE,
    ingress: str = INGRESS_INTERFACE,
    sources: Sequence[str] = ("0.0.0.0/0",),
) -> None:
    """Lead what enters over the interface from IPv4 networks, by default all, through an ifb device that is made.

    A qdisc may hold it there. Raises TestbedError when the kernel lacks ifb, the ingress qdisc or act_mirred.
    """
    run_in(namespace, ["ip", "-batch", "-"], stdin=f"link add {ingress} type ifb\nlink set {ingress} up\n")
    redirect = ["action", "mirred", "egress", "redirect", "dev", ingress]
    run_in(namespace, ["tc", "qdisc", "add", "dev", interface, "ingress"])
    for source in sources:
        match = ["protocol", "ip", "u32", "match", "ip", "src", source]
        if source == "0.0.0.0/0":
            match = ["protocol", "all", "u32", "match", "u32", "0", "0"]
        run_in(namespace, ["tc", "filter", "add", "dev", interface, "parent", "ffff:", *match, *redirect])


def segment_in_kernel(namespace: str | None, *, every_packet: bool, interface: str = INTERFACE) -> None:
    """Let super-packets through, or cut them before the link so that each packet is lost on its own."""
    run_in(namespace, ["ip", "link", "set", "dev", interface, "gso_max_segs", "1" if every_packet else "65535"])


def describe_qdiscs(namespace: str | None, interface: str = INTERFACE) -> list[dict[str, object]]:
    """Read the interface's queueing disciplines with their statistics, as `tc -s -j` prints them."""
    listed: list[dict[str, object]] = json.loads(
        run_in(namespace, ["tc", "-s", "-j", "qdisc", "show", "dev", interface])
    )
    return listed


def qdisc_counts(namespace: str | None, interface: str = INTERFACE) -> dict[str, int]:
    """Return the `drops`, `packets` and `bytes` of the interface's root queueing discipline.

    Of a super-packet that was sent each segment counts, with its headers.
    """
    roots = [qdisc for qdisc in describe_qdiscs(namespace, interface) if qdisc.get("root")]
    return {key: sum(int(str(root.get(key, 0))) for root in roots) for key in ("drops", "packets", "bytes")}


@dataclass(slots=True)
class WantedLosses:
    """Distinguishes the packets that a regime asks netem to lose from others; netem counts both as drops."""

    _losing: bool = False
    _began: int = 0
    """netem's count when the regime began."""
    _wanted: int = 0
    """Losses of the regimes before."""

    def begin(self, drops: int, *, losing: bool) -> None:
        """Begin a regime that loses packets, or none, at this count of netem."""
        self._wanted = drops - self.count_unwanted(drops)
        self._losing, self._began = losing, drops

    def count_unwanted(self, drops: int) -> int:
        """Return the drops among netem's count that no regime asks for; of a losing regime none are known."""
        return (self._began if self._losing else drops) - self._wanted
