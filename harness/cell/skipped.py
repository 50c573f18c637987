"""Samples that a loader left out under its policy on_error=skip: reported by the cell, counted and shown (pure)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from harness.cell.events import CellEvent

EVENT: Final = "skipped"
_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class Skipped:
    """Samples that were left out of one epoch."""

    epoch: int
    count: int
    """How often the loader counted a sample as left out."""
    samples: Mapping[int, str]
    """Why, by id; samples that were left out of an earlier epoch of the cell may be among them."""


def skipped_by_epoch(events: Iterable[CellEvent]) -> dict[int, Skipped]:
    """Return the samples that were left out, by epoch, of all ranks. Epochs without such samples are absent."""
    found: dict[int, Skipped] = {}
    for event in events:
        if event["event"] == EVENT:
            before = found.get(event["epoch"], Skipped(event["epoch"], 0, {}))
            samples = {int(key): str(why) for key, why in event["samples"].items()}
            found[before.epoch] = Skipped(
                before.epoch, before.count + int(event["count"]), {**before.samples, **samples}
            )
    return found


def id_list(ids: Collection[int]) -> str:
    """Return ids as text, ascending, the first few by name: "3, 7" or "0, 1, 2, 3, 4 and 15 more"."""
    shown = ", ".join(map(str, sorted(ids)[:_SHOWN]))
    return shown if len(ids) <= _SHOWN else f"{shown} and {len(ids) - _SHOWN} more"
