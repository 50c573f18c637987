"""The emulated link between the storage and the compute namespace of one machine."""

from __future__ import annotations

from typing import Literal

from harness.errors import TestbedError
from harness.testbed.link.base import Link, LinkCounters
from harness.testbed.link.namespace import COMPUTE_ADDRESS, INTERFACE, STORAGE_ADDRESS

__all__ = ["COMPUTE_ADDRESS", "INTERFACE", "STORAGE_ADDRESS", "Link", "LinkCounters", "LinkKind", "open_link"]

LinkKind = Literal["auto", "netem", "relay"]


def open_link(storage_ns: str, compute_ns: str, *, kind: LinkKind = "auto", run_id: str = "") -> Link:
    """Connect two network namespaces by a link that passes everything at once until it is `set`.

    Args:
        storage_ns: path of the storage node's namespace, such as `/run/netns/name`; it gets 10.77.0.1/30.
        compute_ns: path of the compute node's namespace; it gets 10.77.0.2/30.
        kind: `netem` for the kernel's own emulation, `relay` for the user-space delay line, `auto` for netem
            where the kernel has all it takes and the relay elsewhere.
        run_id: the run that the relay belongs to; that of this process by default.

    Raises TestbedError when a device, a permission or a tool is missing; the message names it.
    """
    # Imported where they are used: the probe starts as a process of its own and must start quickly.
    from harness.testbed.link.netem_link import NetemLink
    from harness.testbed.link.qdisc import kernel_has
    from harness.testbed.link.userspace.relay_link import RelayLink

    why_not = ""
    if kind != "relay" and kernel_has(storage_ns, "netem"):
        try:
            return NetemLink(storage_ns, compute_ns)
        except TestbedError as error:
            # netem is there but not what leads to it (ifb, mirred): the relay does the same, and says why.
            if kind == "netem":
                raise
            why_not = f"netem was not used: {error}"
    elif kind == "netem":
        raise TestbedError(
            "link kind netem: this kernel has no sch_netem; use kind relay, or load the module as root "
            "(modprobe sch_netem; on Debian and Ubuntu it is in linux-modules-extra)"
        )
    link = RelayLink(storage_ns, compute_ns, run_id=run_id)
    if why_not:
        link.note(why_not)
    return link
