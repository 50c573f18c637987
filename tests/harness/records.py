"""Stored cells with other records than `stored` has."""

from dataclasses import asdict, replace

import pyarrow.parquet as pq

from harness.cell.epoch import save_batches
from harness.results.cells import CellRecord, LinkRecord
from harness.results.files import parse_value
from harness.run.cells.rank_files import join_batches

S = 1_000_000_000
START = 1_700_000_000 * S
PROBE = {"rtt_ms_median": 30.1, "rtt_ms_min": 30.0, "rtt_ms_p99": 30.4, "rtt_samples": 120, "rate_gbit": 0.98}


def change(data, *, cell=None, link=None, **parts):
    """Return the data of a cell with some keys of its cell.json (and of its energy) and link.json changed."""
    known = asdict(data.cell)
    for key, value in (cell or {}).items():
        known[key] = {**known[key], **value} if key == "energy" else value
    return replace(
        data,
        cell=parse_value(CellRecord, known),
        link=parse_value(LinkRecord, {**asdict(data.link), **(link or {})}),
        **parts,
    )


def compared(epoch, count=4, **found):
    """Return the event of an epoch of which samples were compared, by default none of them wrong."""
    known = {"compared": list(range(count)), "wrong": {}, "by_form": False, "reason": "", "seconds": 0.1}
    return {"event": "content", "epoch": epoch, "utc_ns": START + 9 * S, "mono_ns": 9 * S, **known, **found}


def with_events(data, start=None, end=None, more=()):
    """Return the data of a cell with counters of the epoch's first and last event changed, and with more events."""
    made, first, last = data.events[:3]
    return replace(data, events=[made, {**first, **(start or {})}, {**last, **(end or {})}, *data.events[3:], *more])


def with_epochs(data, *epochs):
    """Return the data of a cell with more epochs, each as the first one: by number, the batches of each."""
    _, start, end = data.events[:3]
    more = [{**event, "epoch": epoch} for epoch, _ in epochs for event in (compared(epoch), start, end)]
    return replace(data, events=[*data.events, *more], batches=data.batches | dict(epochs))


def store_batches(records, epoch, folder, losses=None, *, keeps_labels=False):
    """Write the batches of an epoch as a cell and its driver do."""
    save_batches(records, epoch, folder / f"batches-{epoch:04d}.jsonl", losses, keeps_labels=keeps_labels)
    pq.write_table(join_batches([folder]), folder / "batches.parquet")
