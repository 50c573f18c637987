"""The metrics of an epoch beside its row: latencies, preprocessing, losses, memory, disks, network, link, GPU; pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from harness.cell.events import CellEvent
from harness.cell.skipped import skipped_by_epoch
from harness.config.regime import Regime
from harness.results.cell_folder import CellData, EpochBatches
from harness.results.edges import (
    find_epoch_edges,
    measure_early,
    measure_growth,
    measure_others,
    measure_set_up,
    sum_over_ranks,
)
from harness.results.epoch_row import RankRow
from harness.results.make_rows import make_rank_rows, select_resources
from harness.testbed.caches import MAPPED_STAY
from harness.testbed.link.measure.watch import INTERVAL_S, Ping

Number = TypeVar("Number", int, float)

JITTERS = 4
"""Standard deviations of the delay by which packets that keep their order come late, each way."""

SECOND_S = 1.0
"""Shortest time over which the rate of a link is looked at: shorter ones are of its bursts."""
LOOK_S = 0.05
"""How far the time of a row of resources.parquet may lie from that of its bytes."""


@dataclass(frozen=True, slots=True)
class EpochMetrics:
    """One row of metrics.csv, of the epoch of epochs.csv with the same cell_id and epoch; None is unknown."""

    cell_id: str
    epoch: int
    first_batch_s: float
    """From the epoch's start to its first batch."""
    batch_p50_s: float
    """Batch latency: how long the step waited for a batch, of all batches of the epoch."""
    batch_p95_s: float
    batch_p99_s: float
    skipped_samples: int
    """Samples that the loader left out under on_error=skip."""
    steady_samples_per_s: float | None
    """From the end of the first step to the end of the epoch; None for one batch."""
    work_mean_s: float | None
    """Preprocessing of a sample, from reading to its last transform; None where the engine does not report it."""
    work_p50_s: float | None
    work_p75_s: float | None
    work_p90_s: float | None
    work_min_s: float | None
    work_max_s: float | None
    work_std_s: float | None
    loss_first: float | None
    """Of the epoch's first step; None where nothing is trained."""
    loss_last: float | None
    loss_mean: float | None
    """Of all steps of the epoch."""
    cell_cpu_s: float | None
    """CPU seconds of the cell and its workers."""
    pss_peak_bytes: int | None
    """Memory of the cell and its workers, what they share counted once: the most that was seen."""
    rss_peak_bytes: int | None
    """The same with shared memory counted for each process; read four times a second."""
    disk_read_bytes: int | None
    """Of the host's disks."""
    disk_written_bytes: int | None
    rx_bytes: int | None
    """On the data interface; None for local data."""
    tx_bytes: int | None
    gpu_mem_peak_bytes: int | None
    """Of the board on which most was used."""
    others_cpu_s: float | None
    """CPU seconds of processes that are not of the run."""
    steal_s: float | None
    """CPU seconds that the host of this virtual machine gave to its other guests."""
    run_wait_s: float | None
    """For how long threads of the run waited for a CPU, for each other or for others."""
    link_held_ms: float | None
    """Longest time for which the link held a ping, beyond what round trip, jitter and queue explain."""
    link_pause_ms: float | None
    """Longest pause of the delay line; None for local data and under netem."""
    ranks: int
    """Ranks that trained together."""
    ranks_wait_s: float | None
    """Longest time that a rank waited for slower ones; None for one rank, and where no gradients are synchronised."""
    readers: int | None
    """How many files the loader reads at once; None where its section names no such argument."""
    rank_samples_most: int | None
    """Samples of the rank that had most; None for one rank."""
    cpu_user_s: float | None
    """The part of `cell_cpu_s` in user mode."""
    cpu_system_s: float | None
    """The part of `cell_cpu_s` in the kernel."""
    setup_cpu_s: float | None
    """CPU seconds of the cell and its workers from before the loader was made until the first epoch's start; None for
    other epochs."""
    setup_rx_bytes: int | None
    """Bytes received on the data interface in this time, of several ranks by the node that received most."""
    early_cpu_s: float | None
    """CPU seconds of the cell and its workers after set-up, or after the epoch before, until the epoch's start."""
    early_rx_bytes: int | None
    """Bytes received on the data interface in this time, of several ranks by the node that received most."""
    storage_read_bytes: int | None
    """Read from disks where the samples are stored: on one machine by the processes that read samples or serve them, on
    other hosts by all programs. None where it is not counted."""
    read_amplification: float | None
    """`storage_read_bytes` over the bytes of the samples that came from there.

    None where nothing was read from a disk that the kernel counts, where caches were not dropped before the epoch, or
    where another program dropped them within the epoch, so that samples were read again."""
    gpu_temp_c: float | None = None
    """At the epoch's end, of the hottest board that the cell trains on, or of all where it trains on none."""
    gpu_clock_mhz: float | None = None
    """Of the multiprocessors of the slowest of these boards at the epoch's end."""
    gpu_memory_clock_mhz: float | None = None
    gpu_power_limit_w: float | None = None
    """The lowest of these boards' limits."""
    gpu_capped: float | None = None
    """Share of the epoch in which the limit held the clocks back, 0 to 1, of the board that it held back longest."""
    cpu_temp_c: float | None = None
    """Of the hottest package of all hosts at the epoch's end."""
    cpu_clock_mhz: float | None = None
    """Of the slowest of these packages, the mean of its processors, at the epoch's end."""


@dataclass(frozen=True, slots=True)
class LinkPings:
    """What the pings of an epoch showed of its link."""

    due: int
    """Pings that there was time for."""
    sent: int
    lost: int
    held_ms: tuple[float, ...]
    """For each answer: how much longer it took than the round trip, the jitter, and the bytes that the link carried
    before it explain."""
    pause_ms: float | None
    """The delay line's own longest pause; None for a link that the kernel makes."""
    nearer_ms: float = 0.0
    """By how much half of the answers came earlier than the round trip, jitter allowed for; 0 where they did not."""

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
    trips_ms = [ping.rtt_ms for ping in pings if ping.rtt_ms is not None]
    held = tuple(_compute_held_ms(ping, ping.rtt_ms, regime) for ping in pings if ping.rtt_ms is not None)
    least_ms = regime.rtt_ms - 2 * JITTERS * regime.jitter_ms
    pause_s = data.link.get_epoch(start["epoch"]).pause_s
    return LinkPings(
        due=int((end["utc_ns"] - start["utc_ns"]) / 1e9 / INTERVAL_S),
        sent=len(pings),
        lost=len(pings) - len(held),
        held_ms=held,
        pause_ms=None if pause_s is None else pause_s * 1e3,
        nearer_ms=max(0.0, least_ms - float(np.median(trips_ms))) if trips_ms else 0.0,
    )


def find_fastest_second(data: CellData, start: CellEvent, end: CellEvent) -> float | None:
    """Return the highest mean rate, Gbit/s, of what the data interface received in `SECOND_S` or more of an epoch.

    None for a shorter epoch, and where the interface was not looked at.
    """
    seen = [row for row in select_resources(data.resources, start, end) if row.rx_bytes is not None]
    times_s = np.array([row.utc_ns / 1e9 for row in seen])
    received = np.array([row.rx_bytes for row in seen], dtype=np.float64)
    rates, last = [], 0
    for first in range(len(seen)):
        while last < len(seen) and times_s[last] - times_s[first] < SECOND_S:
            last += 1
        if last < len(seen):
            # A row's time and its bytes are not of one instant where the machine is busy.
            rates.append((received[last] - received[first]) / (times_s[last] - times_s[first] + LOOK_S))
    return float(max(rates)) * 8 / 1e9 if rates else None


def _compute_held_ms(ping: Ping, rtt_ms: float, regime: Regime) -> float:
    assert regime.rate_gbit is not None
    carrying_ms = (ping.carried_bytes or 0) * 8 / (regime.rate_gbit * 1e6)
    return max(0.0, rtt_ms - regime.rtt_ms - 2 * JITTERS * regime.jitter_ms - carrying_ms)


def make_epoch_metrics(data: CellData) -> list[EpochMetrics]:
    """Return the metrics of every epoch that began and ended."""
    skipped, ranks = skipped_by_epoch(data.events), make_rank_rows(data)
    after = {event["epoch"]: event["pss_bytes"] for event in data.events if event["event"] == "memory"}
    return [
        _measure_epoch(
            data,
            start,
            end,
            pss_after=after.get(epoch),
            skipped=skipped[epoch].count if epoch in skipped else 0,
            ranks=[row for row in ranks if row.epoch == epoch],
        )
        for epoch, (start, end) in find_epoch_edges(data.events).items()
    ]


def _measure_epoch(
    data: CellData, start: CellEvent, end: CellEvent, *, pss_after: int | None, skipped: int, ranks: Sequence[RankRow]
) -> EpochMetrics:
    epoch = start["epoch"]
    batches, seen = data.batches[epoch], select_resources(data.resources, start, end)
    p50, p95, p99 = np.percentile(batches.wait_s, (50, 95, 99))
    loss = [] if batches.loss is None else batches.loss.tolist()
    taken, link = measure_others(start, end), summarize_pings(data, start, end)
    early, set_up = measure_early(data.events, epoch), measure_set_up(data.events, epoch)
    carried = data.link.get_epoch(epoch)
    return EpochMetrics(
        cell_id=data.cell.cell_id,
        epoch=epoch,
        first_batch_s=max(float(part.wait_s[0]) for part in batches.of_ranks()),
        batch_p50_s=float(p50),
        batch_p95_s=float(p95),
        batch_p99_s=float(p99),
        skipped_samples=skipped,
        steady_samples_per_s=_compute_steady_rate(batches, end["duration_ns"] / 1e9),
        **_summarize_work(batches.work_s),
        loss_first=loss[0] if loss else None,
        loss_last=loss[-1] if loss else None,
        loss_mean=float(np.mean(loss)) if loss else None,
        cell_cpu_s=sum_over_ranks(data.events, epoch, "cell_cpu_s"),
        cpu_user_s=sum_over_ranks(data.events, epoch, "cell_user_s"),
        cpu_system_s=sum_over_ranks(data.events, epoch, "cell_system_s"),
        setup_cpu_s=set_up.cpu_s,
        setup_rx_bytes=set_up.rx_bytes,
        early_cpu_s=early.cpu_s,
        early_rx_bytes=early.rx_bytes,
        storage_read_bytes=measure_storage_read(data, start, end),
        read_amplification=_compute_amplification(data, start, end),
        pss_peak_bytes=_find_max([*(row.pss_bytes for row in seen), pss_after]),
        rss_peak_bytes=_find_max(row.rss_bytes for row in seen),
        disk_read_bytes=measure_growth(start, end, "disk_read_bytes"),
        disk_written_bytes=measure_growth(start, end, "disk_written_bytes"),
        # The link's counters leave out the packets that watched it.
        rx_bytes=carried.rx_bytes if data.link.epochs else measure_growth(start, end, "rx_bytes"),
        tx_bytes=carried.tx_bytes if data.link.epochs else measure_growth(start, end, "tx_bytes"),
        gpu_mem_peak_bytes=_find_max(row.gpu_mem_bytes for row in seen),
        others_cpu_s=None if taken is None else taken.cpu_s,
        steal_s=None if taken is None else taken.steal_s,
        run_wait_s=None if taken is None else taken.wait_s,
        link_held_ms=None if link is None else max(link.held_ms, default=None),
        link_pause_ms=None if link is None else link.pause_ms,
        ranks=max(1, len(ranks)),
        ranks_wait_s=max((row.ranks_wait_s for row in ranks if row.ranks_wait_s is not None), default=None),
        readers=data.cell.readers,
        rank_samples_most=max((row.samples for row in ranks), default=None),
        **_measure_devices(data, epoch, end["duration_ns"] / 1e9),
    )


def _measure_devices(data: CellData, epoch: int, span_s: float) -> dict[str, float | None]:
    """Return the columns of boards and processors, of all hosts."""
    boards = data.cell.accelerator.boards
    pairs = [pair for edges in data.list_host_edges(epoch) for pair in edges.list_devices(boards)]
    held_s = [measure_growth(start.held_s, end.held_s, "sw_power_cap") for start, end in pairs]
    gpus, cpus = ([end for _, end in pairs if bool(end.uuid) is is_board] for is_board in (True, False))
    capped_s = _find_max(held_s)
    return {
        "gpu_temp_c": _find_max(one.temp_c for one in gpus),
        "gpu_clock_mhz": _find_min(one.clock_mhz for one in gpus),
        "gpu_memory_clock_mhz": _find_min(one.memory_clock_mhz for one in gpus),
        "gpu_power_limit_w": _find_min(one.limit_w for one in gpus),
        "gpu_capped": None if capped_s is None else min(1.0, capped_s / span_s),
        "cpu_temp_c": _find_max(one.temp_c for one in cpus),
        "cpu_clock_mhz": _find_min(one.clock_mhz for one in cpus),
    }


def measure_storage_read(data: CellData, start: CellEvent, end: CellEvent) -> int | None:
    """Return the bytes read from disks where the samples are stored; None where they were not counted."""
    if data.cell.hosts and not is_local(data):
        return data.cell.storage_reads.get(start["epoch"])
    if len({rank.host for rank in data.cell.ranks}) > 1:
        return None
    served = [
        measure_growth(start, end, f"{part}_read_bytes") for part in ("daemon", "mount") if f"{part}_cpu_s" in start
    ]
    # What the cell reads itself is code, where all samples come from a daemon or a mount.
    is_own = not served or is_local(data) or data.cell.placement.kind != "remote"
    own = [sum_over_ranks(data.events, start["epoch"], "cell_read_bytes")] if is_own else []
    return None if None in (*served, *own) else int(sum((*served, *own)))


def is_local(data: CellData) -> bool:
    """Whether all samples lie on the node that trains."""
    return data.cell.regime.is_local or data.cell.placement.kind == "local"


def _compute_amplification(data: CellData, start: CellEvent, end: CellEvent) -> float | None:
    """Return the bytes read from disks over the bytes of the samples that came from there."""
    read, placement = measure_storage_read(data, start, end), data.cell.placement
    remote_alone = bool(data.cell.hosts) and not is_local(data) and placement.kind == "half"
    brought = placement.remote_bytes if remote_alone else data.count_bytes(start["epoch"])
    was_cold = bool(data.cell.caches) and MAPPED_STAY not in data.cell.caches
    stayed_cold = was_cold and not measure_growth(start, end, "cache_drops")
    if not read or not brought or not stayed_cold or data.cell.reads == "once":
        return None
    return read / brought


def _compute_steady_rate(batches: EpochBatches, duration_s: float) -> float | None:
    parts = batches.of_ranks()
    left_s = duration_s - max(float(part.wait_s[0] + part.step_s[0]) for part in parts)
    later = sum(float(part.samples[1:].sum()) for part in parts)
    return later / left_s if later and left_s > 0 else None


def _summarize_work(work_s: npt.NDArray[np.float64] | None) -> dict[str, float | None]:
    names = ("mean", "p50", "p75", "p90", "min", "max", "std")
    if work_s is None or not len(work_s):
        return {f"work_{name}_s": None for name in names}
    p50, p75, p90 = np.percentile(work_s, (50, 75, 90))
    values = (work_s.mean(), p50, p75, p90, work_s.min(), work_s.max(), work_s.std())
    return {f"work_{name}_s": float(value) for name, value in zip(names, values, strict=True)}


def _find_max(values: Iterable[Number | None]) -> Number | None:
    return max((value for value in values if value is not None), default=None)


def _find_min(values: Iterable[float | None]) -> float | None:
    return min((value for value in values if value is not None), default=None)
