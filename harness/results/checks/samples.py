"""Rules on what came: the bytes over the link and from the disk, and which samples, once, in which order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from harness.cell.events import CONTENT
from harness.cell.skipped import id_list, skipped_by_epoch
from harness.results.checks.judged import (
    FAIL,
    NOT_APPLICABLE,
    OVERHEAD,
    PASS,
    READS_ONCE,
    UNKNOWN,
    WARN,
    Check,
    JudgedEpoch,
)
from harness.results.make_rows import make_rank_rows
from harness.results.metrics import is_local, measure_storage_read
from harness.testbed.caches import DROPPED

FEW = 64
"""Samples below which two epochs may have the same order by chance: a loader may shuffle runs of several."""
OVERHEAD_BYTES = 2**20
"""What protocols may add besides `OVERHEAD`, as may `SAMPLE_OVERHEAD_BYTES` for each sample: its attributes, or its
query."""
SAMPLE_OVERHEAD_BYTES = 4096
LEAST_READ = 0.9
"""Share of its bytes that a cold epoch of local samples reads from disks: whole pages, so that 1 is usual."""


def check_samples(epoch: JudgedEpoch) -> Iterable[Check]:
    """Judge which samples came, and in which order. A loader that reads nothing in an epoch is not judged by them."""
    received = [] if epoch.data.cell.regime.is_local else _check_bytes(epoch)
    checks = (_check_exactly_once, _check_loader_bytes, _check_labels, _check_shuffled, _check_content)
    for check in [*received, *(judge(epoch) for judge in checks)]:
        yield replace(check, actual=READS_ONCE, verdict=NOT_APPLICABLE) if epoch.data.cell.reads == "once" else check
    yield _check_local_reads(epoch)


def _check_bytes(epoch: JudgedEpoch) -> Iterable[Check]:
    """Judge what came over the link: all samples that are stored beyond it, and none that are stored here."""
    if epoch.data.cell.ranks:
        yield _check_bytes_by_node(epoch)
        return
    placement, whole = epoch.data.cell.placement, epoch.row.bytes
    received = epoch.data.link.get_epoch(epoch.row.epoch).rx_bytes
    needed = whole if placement.kind == "remote" else placement.remote_bytes
    share = "" if needed == whole else f" of {whole}"
    samples = len(epoch.ids) if needed == whole else placement.remote_samples
    # What a declared policy leaves out has crossed the link too.
    told = skipped_by_epoch(epoch.data.events).get(epoch.row.epoch)
    sizes = epoch.data.sizes
    skipped = sum(int(sizes[one]) for one in (told.samples if told else ()) if 0 <= one < len(sizes))
    most = round((needed + skipped) * (1 + OVERHEAD)) + samples * SAMPLE_OVERHEAD_BYTES + OVERHEAD_BYTES
    expected = f"{needed} to {most}{share} bytes on the data interface (no hidden cache, and nothing else)"
    if needed:
        yield epoch.check_count("bytes_received", expected, received, "bytes", (needed, most))
    else:
        yield epoch.check("bytes_received", expected, "no sample lies beyond the link", NOT_APPLICABLE)
    if share:
        most = needed + (whole - needed) // 2
        expected = f"≤ {most} bytes on the data interface (what lies on the compute node stays there)"
        yield epoch.check_count("local_bytes", expected, received, "bytes", (0, most))


def _check_bytes_by_node(epoch: JudgedEpoch) -> Check:
    """Judge what each node received: its ranks' samples from elsewhere, and the gradients of the other nodes."""
    needed: dict[str, int] = defaultdict(int)
    received: dict[str, int | None] = {}
    for rank in make_rank_rows(epoch.data):
        if rank.epoch == epoch.row.epoch:
            record = epoch.data.cell.ranks[rank.rank]
            least = next(one for one in record.epochs if one.epoch == rank.epoch)
            needed[rank.address] += least.remote_bytes + least.gradient_bytes
            received[rank.address] = rank.rx_bytes
    expected = ", ".join(f"≥ {count} bytes at {address}" for address, count in needed.items())
    actual = ", ".join(f"{'unknown' if count is None else count} at {address}" for address, count in received.items())
    known = {address: count for address, count in received.items() if count is not None}
    verdict = UNKNOWN if len(known) < len(received) else all(known[one] >= count for one, count in needed.items())
    if not any(needed.values()):
        verdict = NOT_APPLICABLE
    return epoch.check("bytes_received", f"{expected} (samples that lie elsewhere, and gradients)", actual, verdict)


def _check_exactly_once(epoch: JudgedEpoch) -> Check:
    """Judge the ids that came. Samples that the loader's declared policy left out are counted, and need not come."""
    cell, ids = epoch.data.cell, epoch.ids
    n = cell.dataset.samples
    inside = ids[(ids >= 0) & (ids < n)]
    seen = np.bincount(inside, minlength=n)
    absent, repeated = np.flatnonzero(seen == 0).tolist(), int((seen > 1).sum())
    strange = len(ids) - len(inside)
    over = f" over {len(cell.ranks)} ranks" if cell.ranks else ""
    expected, actual = f"each of {n} samples once{over}", ""
    told = skipped_by_epoch(epoch.data.events).get(epoch.row.epoch) if cell.on_error == "skip" else None
    left_out = [] if told is None else [sample_id for sample_id in absent if sample_id in told.samples]
    miscounted = told is not None and told.count != len(left_out)
    if told is not None:
        expected += ", or skipped by policy (on_error=skip)"
        actual = f"{len(left_out)} skipped by policy ({id_list(left_out)})" if left_out else "0 skipped by policy"
        actual += f" where the loader counted {told.count}, " if miscounted else ", "
    missing = len(absent) - len(left_out)
    actual += f"{missing} missing, {repeated} repeated, {strange} unknown"
    return epoch.check("exactly_once", expected, actual, not (missing or repeated or strange or miscounted))


def _check_loader_bytes(epoch: JudgedEpoch) -> Check:
    """Judge the bytes that the loader counts by the sizes of the samples that came."""
    expected = "the loader counts the bytes of its samples, as samples.parquet has them"
    counted, whole = int(epoch.data.batches[epoch.row.epoch].nbytes.sum()), epoch.row.bytes
    return epoch.check("loader_bytes", expected, f"{counted} of {whole} bytes", counted == whole)


def _check_labels(epoch: JudgedEpoch) -> Check:
    """Judge the labels that came by those of the dataset. A loader that decodes nothing may bring the right ids."""
    expected = "each sample with its label, as samples.parquet has them"
    came, right, ids = epoch.data.batches[epoch.row.epoch].labels, epoch.data.labels, epoch.ids
    if came is None:
        return epoch.check("labels", expected, "not kept: no classes", NOT_APPLICABLE)
    if len(came) != len(ids):
        return epoch.check("labels", expected, "batches with labels other than a whole number a sample", UNKNOWN)
    known = (ids >= 0) & (ids < len(right))
    ids, came = ids[known], came[known]
    wrong = np.flatnonzero(came != right[ids])
    actual = f"{len(wrong)} of {len(ids)} wrong"
    if len(wrong):
        sample_id = ids[wrong[0]]
        actual += f", the first of them {came[wrong[0]]} where sample {sample_id} has {right[sample_id]}"
    return epoch.check("labels", expected, actual, not len(wrong))


def _check_content(epoch: JudgedEpoch) -> Check:
    """Judge the samples that the cell's ranks chose at random and compared with what the pipeline makes of them."""
    expected = "samples chosen at random are what the pipeline makes of their files"
    events = [one for one in epoch.data.events if one["event"] in (CONTENT, f"rank.{CONTENT}")]
    found = [one for one in events if one["epoch"] == epoch.row.epoch]
    if len(found) < max(1, len(epoch.data.cell.ranks)):
        return epoch.check("content", expected, "not compared", UNKNOWN)
    count, wrong = sum(len(one["compared"]) for one in found), [each for one in found for each in one["wrong"].items()]
    if wrong:
        sample_id, why = wrong[0]
        return epoch.check("content", expected, f"{len(wrong)} of {count} wrong: of sample {sample_id}, {why}", FAIL)
    if not count:
        return epoch.check("content", expected, next(one["reason"] for one in found), NOT_APPLICABLE)
    by_form = "; their random numbers are not the pipeline's, so that copies and constants alone are found"
    return epoch.check("content", expected, f"{count} compared{by_form * any(one['by_form'] for one in found)}", PASS)


def _check_shuffled(epoch: JudgedEpoch) -> Check:
    """Judge whether an earlier epoch had the same order. Few samples may have it again by chance."""
    expected = "an order of samples that no earlier epoch of the cell had"
    batches = epoch.data.batches
    earlier = [one for one in batches if one < epoch.row.epoch]
    if not earlier:
        return epoch.check("shuffled", expected, "the first epoch of the cell", NOT_APPLICABLE)
    same = [one for one in earlier if np.array_equal(batches[one].ids, epoch.ids)]
    if not same:
        return epoch.check("shuffled", expected, "its own", PASS)
    return epoch.check("shuffled", expected, f"that of epoch {same[0]}", WARN if len(epoch.ids) < FEW else FAIL)


def _check_local_reads(epoch: JudgedEpoch) -> Check:
    """Judge whether an epoch of local samples, before which caches were dropped, read them from the disk."""
    expected = f"≥ {LEAST_READ:g} of the samples' bytes read from disks, for caches were dropped before the epoch"
    data, cell = epoch.data, epoch.data.cell
    read, needed = measure_storage_read(data, epoch.start, epoch.end), data.count_bytes(epoch.row.epoch)
    is_first = epoch.row.epoch == min(data.batches)
    why_not = {
        "samples lie beyond a link": not is_local(data),
        READS_ONCE: cell.reads == "once",
        "caches were not dropped": not cell.caches or not (is_first or cell.cold == "epoch"),
        f"caches were dropped in part: {cell.caches}": not cell.caches.startswith(DROPPED),
        "reads were not counted": read is None,
        "the files are on no disk whose reads the kernel counts": not cell.on_disk
        and (read or 0) < LEAST_READ * needed,
    }
    for reason, applies in why_not.items():
        if applies:
            return epoch.check("local_reads", expected, reason, NOT_APPLICABLE)
    assert read is not None
    actual = f"{read} of {needed} bytes ({read / max(1, needed):.2f})"
    return epoch.check("local_reads", expected, actual, read >= LEAST_READ * needed)
