"""Delays and caps what passes one interface of this host.

`python -m harness.testbed.link.shaper INTERFACE FILE PEER...` caps the rate where packets leave (tbf), and delays those
that come from the peers' addresses (netem). A kernel without ifb delays where packets leave instead. Each line on
standard input is a JSON command, each line on standard output its answer; the end of standard input takes everything
away again. FILE names the interface until then, so that `restore` can do so when this process is killed.

    {"do": "set", "delay_ms": 15, "jitter_ms": 0, "loss_pct": 0, "rate_gbit": 10}   one-way delay -> {"ok": true}
    {"do": "counters"}                                        -> {"drops": 0, "packets": 0, "bytes": 0}
    {"do": "describe"}                                        -> {"qdiscs": [...]}
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from harness.errors import TestbedError
from harness.testbed.link.namespace import run_in
from harness.testbed.link.qdisc import (
    INGRESS_INTERFACE,
    WantedLosses,
    cap_rate,
    delay_egress,
    delay_ingress,
    describe_qdiscs,
    kernel_has,
    qdisc_counts,
    redirect_ingress,
    segment_in_kernel,
)

RECORD: Final = "shaped-interface"
"""Name of FILE in a run's folder."""
_DEFAULT_HANDLE: Final = "0:"
"""Of a queueing discipline that the kernel chose; the ones that somebody set have another handle."""


class Shaper:
    """The queueing disciplines of one interface, until it is closed.

    Args:
        interface: the interface of the data network.
        record: file that names it meanwhile.
        peers: addresses at the far ends of the link.

    Raises:
        TestbedError: the kernel has no netem, or the interface is missing or has a queueing discipline of its own.
    """

    def __init__(self, interface: str, record: Path, peers: Sequence[str]) -> None:
        self._interface = interface
        own = [one for one in describe_qdiscs(None, interface) if str(one.get("handle")) != _DEFAULT_HANDLE]
        if own:
            kinds = ", ".join(f"{one.get('kind')} {one.get('handle')}" for one in own)
            raise TestbedError(
                f"{interface} has a queueing discipline that somebody set ({kinds}), and it would be lost: remove it "
                f"(tc qdisc del dev {interface} root), or name another data interface"
            )
        if not kernel_has(None, "netem"):
            raise TestbedError("this kernel has no sch_netem: modprobe sch_netem (Ubuntu: linux-modules-extra)")
        record.write_text(f"{interface}\n")
        self._record, self._losses = record, WantedLosses()
        self.delays_ingress = True
        """Whether packets are delayed where they come in; else where they leave."""
        try:
            redirect_ingress(None, interface, sources=[f"{peer}/32" for peer in peers])
        except TestbedError:
            restore(record)
            record.write_text(f"{interface}\n")
            self.delays_ingress = False

    def set(self, *, delay_ms: float, jitter_ms: float, loss_pct: float, rate_gbit: float) -> None:
        """Delay by half of the round trip and cap the rate from now on."""
        self._losses.begin(self._delay_drops(), losing=loss_pct > 0)
        segment_in_kernel(None, every_packet=loss_pct > 0, interface=self._interface)
        if self.delays_ingress:
            cap_rate(None, rate_gbit, self._interface)
            delay_ingress(None, delay_ms, jitter_ms, loss_pct, rate_gbit)
        else:
            delay_egress(None, delay_ms, jitter_ms, loss_pct, rate_gbit, self._interface)

    def counters(self) -> dict[str, int]:
        """Count dropped packets, those that left, and their bytes."""
        left = qdisc_counts(None, self._interface)
        drops = self._losses.count_unwanted(self._delay_drops()) + (left.drops if self.delays_ingress else 0)
        return {"drops": drops, "packets": left.packets, "bytes": left.bytes}

    def _delay_drops(self) -> int:
        """Count the drops where packets are delayed."""
        return qdisc_counts(None, INGRESS_INTERFACE if self.delays_ingress else self._interface).drops

    def describe(self) -> dict[str, object]:
        """Return the queueing disciplines with their statistics."""
        names = [self._interface, *([INGRESS_INTERFACE] if self.delays_ingress else [])]
        return {"qdiscs": {name: describe_qdiscs(None, name) for name in names}}

    def close(self) -> None:
        """Take everything away."""
        restore(self._record)


def restore(record: Path) -> str | None:
    """Take away what a shaper made; return the interface that a record names, None where there is no record.

    Raises:
        TestbedError: the interface still has the shaper's queueing disciplines.
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


def _answer(shaper: Shaper, command: Mapping[str, Any]) -> Mapping[str, object]:
    match command["do"]:
        case "set":
            shaper.set(**{key: float(value) for key, value in command.items() if key != "do"})
            return {"ok": True}
        case "counters":
            return shaper.counters()
        case "describe":
            return shaper.describe()
        case other:
            return {"error": f"unknown command {other!r}; expected set, counters or describe"}


def main(argv: Sequence[str]) -> int:
    """Shape an interface until standard input ends; returns the exit status."""
    interface, record, *peers = argv
    try:
        shaper = Shaper(interface, Path(record), peers)
    except TestbedError as error:
        print(json.dumps({"error": str(error)}), flush=True)
        return error.exit_status
    try:
        print(json.dumps({"ready": True, "delays": "ingress" if shaper.delays_ingress else "egress"}), flush=True)
        for line in sys.stdin:
            try:
                answer = _answer(shaper, json.loads(line))
            except TestbedError as error:
                answer = {"error": str(error)}
            print(json.dumps(answer), flush=True)
    finally:
        shaper.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
