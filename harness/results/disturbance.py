"""What disturbed an epoch: CPU that others took, and a link that did not carry what it should; pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from harness.cell.events import CellEvent
from harness.config.regime import Regime
from harness.results.epochs import CellData
from harness.testbed.link.measure.watch import INTERVAL_S, Ping

JITTERS = 4
"""Standard deviations of the delay by which packets that keep their order come late, each way."""


@dataclass(frozen=True, slots=True)
class Others:
    """What an epoch's processors did for others, in seconds of all of them together."""

    cpus: int
    span_s: float
    """Length of the epoch, as the counters saw it."""
    cpu_s: float
    """CPU time of processes that are not of the run. Interrupts and the kernel's threads count for nobody."""
    steal_s: float
    """Time that the host of this virtual machine gave to its other guests."""
    wait_s: float | None
    """For how long threads of the run waited for a CPU, for each other or for others; None where it is not counted."""


def measure_others(start: CellEvent, end: CellEvent) -> Others | None:
    """Return what others took between two events; None where it was not counted."""
    if start.get("cpu_at_s") is None or end.get("cpu_at_s") is None or end["cpu_idle_s"] <= 0:
        return None
    span_s = end["cpu_at_s"] - start["cpu_at_s"]
    cpus, steal_s = end["cpus"], end["cpu_steal_s"] - start["cpu_steal_s"]
    ours = sum(end[key] - start[key] for key in ("cpu_idle_s", "cpu_irq_s", "run_cpu_s", "kernel_cpu_s"))
    waits = start["run_wait_s"], end["run_wait_s"]
    return Others(
        cpus=cpus,
        span_s=span_s,
        cpu_s=max(0.0, cpus * span_s - steal_s - ours),
        steal_s=steal_s,
        # Threads that ended meanwhile took their share along.
        wait_s=None if None in waits else max(0.0, waits[1] - waits[0]),
    )


@dataclass(frozen=True, slots=True)
class LinkPings:
    """What the pings of an epoch showed of its link."""

    due: int
    """Pings that there was time for."""
    sent: int
    lost: int
    held_ms: tuple[float, ...]
    """For each answer: how much longer it took than the round trip, the jitter, and what the link carried meanwhile at
    its rate explain."""
    pause_ms: float | None
    """The delay line's own longest pause; None for a link that the kernel makes."""

    @property
    def longest_ms(self) -> float:
        """The longest time for which the link held a packet."""
        return max((*self.held_ms, self.pause_ms or 0.0))

    def predict_lost(self, regime: Regime, errors: float) -> float:
        """Return how many pings the regime's loss explains, with `errors` standard errors of chance."""
        share = 1 - (1 - regime.loss_pct / 100) ** 2
        return self.sent * share + errors * math.sqrt(self.sent * share * (1 - share))


def summarize_pings(data: CellData, start: CellEvent, end: CellEvent) -> LinkPings | None:
    """Return what the pings showed of the link between two events. None where it was not watched."""
    if data.pings is None:
        return None
    regime = data.cell.regime
    pings = [ping for ping in data.pings if start["utc_ns"] <= ping.utc_ns <= end["utc_ns"]]
    held = tuple(_compute_held_ms(ping, ping.rtt_ms, regime) for ping in pings if ping.rtt_ms is not None)
    pause_s = data.link.get_epoch(start["epoch"]).pause_s
    return LinkPings(
        due=int((end["utc_ns"] - start["utc_ns"]) / 1e9 / INTERVAL_S),
        sent=len(pings),
        lost=len(pings) - len(held),
        held_ms=held,
        pause_ms=None if pause_s is None else pause_s * 1e3,
    )


def _compute_held_ms(ping: Ping, rtt_ms: float, regime: Regime) -> float:
    assert regime.rate_gbit is not None
    carrying_ms = (ping.carried_bytes or 0) * 8 / (regime.rate_gbit * 1e6)
    return max(0.0, rtt_ms - regime.rtt_ms - 2 * JITTERS * regime.jitter_ms - carrying_ms)
