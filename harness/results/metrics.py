"""What else an epoch was, beside its row: latencies, preprocessing times, losses, memory, disks, network, GPU; pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.cell.events import CellEvent
from harness.cell.skipped import skipped_by_epoch
from harness.results.disturbance import measure_others, summarize_pings
from harness.results.early import measure_early
from harness.results.epochs import (
    CellData,
    EpochBatches,
    compute_gpu_util,
    compute_setup_s,
    find_epoch_edges,
    select_rows,
)
from harness.results.ranks import RankRow, rank_edges, rank_rows
from harness.testbed.caches import MAPPED_STAY


@dataclass(frozen=True, slots=True)
class EpochMetrics:
    """One row of metrics.csv, of the epoch of epochs.csv with the same cell_id and epoch; None is unknown."""

    cell_id: str
    epoch: int
    loader_made_s: float | None
    """`setup_s` of epochs.csv, which older runs have here alone."""
    first_batch_s: float
    """From the epoch's start to its first batch."""
    batch_p50_s: float
    """Batch latency: how long the step waited for a batch, of all batches of the epoch."""
    batch_p95_s: float
    batch_p99_s: float
    skipped_samples: int | None
    """Samples that the loader left out under on_error=skip; None where a cell of an older run did not count them."""
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
    """The same with shared memory counted for each process; looked at four times a second."""
    disk_read_bytes: int | None
    """Of the host's disks."""
    disk_written_bytes: int | None
    rx_bytes: int | None
    """On the data interface; None for local data."""
    tx_bytes: int | None
    gpu_util: float | None
    """Mean over the epoch and the cell's boards, 0 to 1."""
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
    ranks: int | None = None
    """Ranks that trained together; None in folders of runs from before the column."""
    ranks_wait_s: float | None = None
    """Longest time that a rank waited for slower ones; None for one rank, and where no gradients are synchronised."""
    rank_samples_most: int | None = None
    """Samples of the rank that had most; None for one rank."""
    cpu_user_s: float | None = None
    """The part of `cell_cpu_s` in user mode. None in folders of runs from before the column, as are those below."""
    cpu_system_s: float | None = None
    """The part of `cell_cpu_s` in the kernel."""
    early_cpu_s: float | None = None
    """CPU seconds of the cell and its workers after set-up, or after the epoch before, until the epoch's start."""
    early_rx_bytes: int | None = None
    """Bytes received on the data interface meanwhile, of several ranks by the node that received most."""
    storage_read_bytes: int | None = None
    """Read from disks where the samples are stored: on one machine by the processes that read samples or serve them, on
    other hosts by all programs. None where it is not counted."""
    read_amplification: float | None = None
    """`storage_read_bytes` over the bytes of the samples that came from there.

    None where nothing was read from a disk that the kernel counts, where caches were not dropped before the epoch, or
    where another program dropped them meanwhile, so that samples were read again."""


def make_epoch_metrics(data: CellData) -> list[EpochMetrics]:
    """Return the metrics of every epoch that began and ended."""
    edges = find_epoch_edges(data.events)
    skipped = skipped_by_epoch(data.events)
    ranks = rank_rows(data)
    made = compute_setup_s(data.events)
    after = {event["epoch"]: event["pss_bytes"] for event in data.events if event["event"] == "memory"}
    return [
        _measure_epoch(
            data,
            start,
            end,
            data.batches[epoch],
            made_s=made if epoch == min(edges) else None,
            pss_after=after.get(epoch),
            skipped=skipped[epoch].count if epoch in skipped else 0 if data.cell.on_error is not None else None,
            ranks=[row for row in ranks if row.epoch == epoch],
        )
        for epoch, (start, end) in edges.items()
    ]


def _measure_epoch(
    data: CellData,
    start: CellEvent,
    end: CellEvent,
    batches: EpochBatches,
    *,
    made_s: float | None,
    pss_after: int | None,
    skipped: int | None,
    ranks: Sequence[RankRow],
) -> EpochMetrics:
    seen = select_rows(data.resources, start, end)
    p50, p95, p99 = np.percentile(batches.wait_s, (50, 95, 99))
    loss = [] if batches.loss is None else batches.loss.tolist()
    taken, link = measure_others(start, end), summarize_pings(data, start, end)
    early = measure_early(data.events, start["epoch"])
    carried = data.link.get_epoch(start["epoch"])
    return EpochMetrics(
        cell_id=data.cell.cell_id,
        epoch=start["epoch"],
        loader_made_s=made_s,
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
        cell_cpu_s=_sum_ranks(data, start, end, "cell_cpu_s"),
        cpu_user_s=_sum_ranks(data, start, end, "cell_user_s"),
        cpu_system_s=_sum_ranks(data, start, end, "cell_system_s"),
        early_cpu_s=None if early is None else early.cpu_s,
        early_rx_bytes=None if early is None else early.rx_bytes,
        storage_read_bytes=_measure_storage_read(data, start, end),
        read_amplification=_compute_amplification(data, start, end),
        pss_peak_bytes=_find_max([*(row.pss_bytes for row in seen), pss_after]),
        rss_peak_bytes=_find_max(row.rss_bytes for row in seen),
        disk_read_bytes=_subtract(start, end, "disk_read_bytes"),
        disk_written_bytes=_subtract(start, end, "disk_written_bytes"),
        # What watched the link is left out of what the loader had carried over it.
        rx_bytes=carried.rx_bytes if data.link.epochs else _subtract(start, end, "rx_bytes"),
        tx_bytes=carried.tx_bytes if data.link.epochs else _subtract(start, end, "tx_bytes"),
        gpu_util=compute_gpu_util(data, start, end),
        gpu_mem_peak_bytes=_find_max(row.gpu_mem_bytes for row in seen),
        others_cpu_s=None if taken is None else taken.cpu_s,
        steal_s=None if taken is None else taken.steal_s,
        run_wait_s=None if taken is None else taken.wait_s,
        link_held_ms=None if link is None else max(link.held_ms, default=None),
        link_pause_ms=None if link is None else link.pause_ms,
        ranks=max(1, len(ranks)),
        ranks_wait_s=max((row.ranks_wait_s for row in ranks if row.ranks_wait_s is not None), default=None),
        rank_samples_most=max((row.samples for row in ranks), default=None),
    )


def _measure_storage_read(data: CellData, start: CellEvent, end: CellEvent) -> int | None:
    """Return the bytes read from disks where the samples are stored."""
    if data.cell.hosts and not _is_local(data):
        return data.cell.storage_reads.get(start["epoch"])
    if len({rank.host for rank in data.cell.ranks}) > 1:
        return None
    served = [_subtract(start, end, f"{part}_read_bytes") for part in ("daemon", "mount") if f"{part}_cpu_s" in start]
    # What the cell reads itself is code, where all samples come from a daemon or a mount.
    is_own = not served or _is_local(data) or data.cell.placement.kind != "remote"
    own = [_sum_ranks(data, start, end, "cell_read_bytes")] if is_own else []
    return None if None in (*served, *own) else int(sum((*served, *own)))


def _is_local(data: CellData) -> bool:
    """Whether all samples lie on the node that trains."""
    return data.cell.regime.is_local or data.cell.placement.kind == "local"


def _compute_amplification(data: CellData, start: CellEvent, end: CellEvent) -> float | None:
    read, placement = _measure_storage_read(data, start, end), data.cell.placement
    remote_alone = bool(data.cell.hosts) and not _is_local(data) and placement.kind == "half"
    brought = placement.remote_bytes if remote_alone else data.count_bytes(start["epoch"])
    was_cold = bool(data.cell.caches) and MAPPED_STAY not in data.cell.caches
    was_left_alone = not _subtract(start, end, "cache_drops")
    told = bool(read and brought) and was_cold and was_left_alone and data.cell.reads != "once"
    return read / brought if read and told else None


def _sum_ranks(data: CellData, start: CellEvent, end: CellEvent, counter: str) -> float | None:
    """Return by how much a counter grew over all ranks; None where a cell of an older run did not read it."""
    edges = rank_edges(data.events)
    others = [edges[rank][start["epoch"]] for rank in edges if rank]
    each = [_subtract(begin, stop, counter) for begin, stop in [(start, end), *others]]
    return None if None in each else float(sum(each))


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


def _subtract(start: CellEvent, end: CellEvent, counter: str) -> Any:
    """Return by how much a counter grew; None where a cell of an older run did not read it."""
    before, after = start.get(counter), end.get(counter)
    return None if before is None or after is None else after - before


def _find_max(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)
