"""Delays and caps what passes one interface, by the kernel's netem and tbf.

`python -m harness.testbed.link.shaper INTERFACE FILE PEER...` does so on this host for packets from the peers'
addresses, and answers calls until the end of standard input, which takes everything away again. FILE names the
interface until then, so that `restore` can do so when this process is killed.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from harness.errors import TestbedError
from harness.testbed.link.namespace import INTERFACE, run_in
from harness.testbed.link.qdisc import (
    INGRESS_INTERFACE,
    WantedLosses,
    cap_rate,
    delay_ingress,
    describe_qdiscs,
    kernel_has,
    qdisc_counts,
    redirect_ingress,
    segment_in_kernel,
)
from joulefeed.calls import Answers

RECORD: Final = "shaped-interface"
"""Name of FILE in a run's folder."""
_DEFAULT_HANDLE: Final = "0:"
"""Of a queueing discipline that the kernel chose; the ones that somebody set have another handle."""


class Shaper:
    """The queueing disciplines of one interface: a cap on what leaves, and a delay of what comes in.

    The interface is in a network namespace, None for the caller's. Packets from `sources`, IPv4 networks, are delayed.

    Raises TestbedError when the kernel lacks ifb, the ingress qdisc or act_mirred.
    """

    def __init__(
        self, namespace: str | None, interface: str = INTERFACE, sources: Sequence[str] = ("0.0.0.0/0",)
    ) -> None:
        self._namespace, self._interface = namespace, interface
        self._losses = WantedLosses()
        redirect_ingress(namespace, interface, sources=sources)

    def set(self, delay_ms: float, jitter_ms: float, loss_pct: float, rate_gbit: float) -> None:
        """Delay by half of the round trip and cap the rate from now on."""
        self._losses.begin(self._delay_drops(), losing=loss_pct > 0)
        segment_in_kernel(self._namespace, every_packet=loss_pct > 0, interface=self._interface)
        cap_rate(self._namespace, rate_gbit, self._interface)
        delay_ingress(self._namespace, delay_ms, jitter_ms, loss_pct, rate_gbit)

    def counters(self) -> dict[str, int]:
        """Count packets that were dropped though no regime asks for it, and those that left, with their bytes."""
        left = qdisc_counts(self._namespace, self._interface)
        # netem's queue is too long to overflow.
        return {**left, "drops": left["drops"] + self._losses.count_unwanted(self._delay_drops())}

    def _delay_drops(self) -> int:
        return qdisc_counts(self._namespace, INGRESS_INTERFACE)["drops"]

    def describe(self) -> dict[str, object]:
        """Return the queueing disciplines with their statistics, by interface."""
        return {name: describe_qdiscs(self._namespace, name) for name in (self._interface, INGRESS_INTERFACE)}


def check_unshaped(interface: str) -> None:
    """Raise TestbedError where the interface has a queueing discipline that somebody set, or the kernel no netem."""
    own = [one for one in describe_qdiscs(None, interface) if str(one.get("handle")) != _DEFAULT_HANDLE]
    if own:
        kinds = ", ".join(f"{one.get('kind')} {one.get('handle')}" for one in own)
        raise TestbedError(
            f"{interface} has a queueing discipline that somebody set ({kinds}), and it would be lost: remove it "
            f"(tc qdisc del dev {interface} root), or name another data interface"
        )
    if not kernel_has(None, "netem"):
        raise TestbedError("this kernel has no sch_netem: modprobe sch_netem (Ubuntu: linux-modules-extra)")


def restore(record: Path) -> str | None:
    """Take away what a shaper made; return the interface that a record names, None where there is no record.

    Raises TestbedError when the interface still has the shaper's queueing disciplines.
    """
    try:
        interface = record.read_text().strip()
    except FileNotFoundError:
        return None
    for argv in (
        ["tc", "qdisc", "del", "dev", interface, "root"],
        ["tc", "qdisc", "del", "dev", interface, "ingress"],
        ["ip", "link", "set", "dev", interface, "gso_max_segs", "65535"],
        ["ip", "link", "del", INGRESS_INTERFACE],
    ):
        # Some of it may not be made yet, or be gone since the host started again.
        with contextlib.suppress(TestbedError):
            run_in(None, argv)
    left = [] if not Path(f"/sys/class/net/{interface}").exists() else describe_qdiscs(None, interface)
    if any(str(one.get("handle")) != _DEFAULT_HANDLE for one in left):
        raise TestbedError(f"{interface}: the run's queueing disciplines stay: {left}")
    record.unlink()
    return interface


def main(argv: Sequence[str]) -> int:
    """Shape an interface until standard input ends; returns the exit status."""
    interface, record, *peers = argv
    try:
        check_unshaped(interface)
        Path(record).write_text(f"{interface}\n")
        try:
            shaper = Shaper(None, interface, [f"{peer}/32" for peer in peers])
            print('{"ready": true}', flush=True)
            Answers(
                {"set": shaper.set, "counters": shaper.counters, "describe": shaper.describe}, (TestbedError,)
            ).run()
        finally:
            restore(Path(record))
    except TestbedError as error:
        print(error, file=sys.stderr)
        return error.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
