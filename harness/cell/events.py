"""A cell's events: appended as JSON lines while it runs, so that its death loses none."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.parquet as pq

CONTENT: Final = "content"
"""The event of an epoch whose samples were compared, after all epochs; its values are those of a `Content`."""
SET_UP: Final = "set_up"
"""The event before the loader is made, with the counters of that moment."""
CellEvent = dict[str, Any]
"""`event`, its kind; `utc_ns` and `mono_ns`, when it was; and the values of its kind, as JSON has them."""


@dataclass(frozen=True, slots=True)
class Moment:
    """An instant by two clocks, ns."""

    utc_ns: int
    mono_ns: int

    @classmethod
    def now(cls) -> Self:
        """Return the present one."""
        return cls(time.time_ns(), time.monotonic_ns())


class EventLog:
    """Appends events to a file."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")

    def add(self, event: str, *, at: Moment | None = None, synced: bool = True, **values: object) -> None:
        """Write one event, of now or of the instant `at`; it is on disk when this returns.

        With `synced` false it survives the death of this process alone; the next event that is synced takes it along.
        """
        record = {"event": event, **asdict(at or Moment.now()), **values}
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()
        if synced:
            os.fsync(self._file.fileno())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def read_events(path: Path) -> list[CellEvent]:
    """Return the whole events of a log; a torn last line is left out."""
    if not path.exists():
        return []
    found = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def read_timestamps(path: Path, who: str) -> list[CellEvent]:
    """Return what a loader or its daemon wrote of its batches and epochs, as events such as "who.batch_sent".

    Their clock is UTC, like the clock of the energy readings; they have no monotonic time.
    """
    return [
        {"event": f"{who}.{told.pop('event')}", "utc_ns": told.pop("t_ns"), "mono_ns": None, **told}
        for told in read_events(path)
    ]


def save_events(events: list[CellEvent], path: Path) -> None:
    """Write events as Parquet: event, utc_ns, mono_ns (or null), and the rest of each as JSON in `values`."""
    fixed = ("event", "utc_ns", "mono_ns")
    table = pa.table(
        {
            "event": pa.array([e["event"] for e in events], pa.string()),
            "utc_ns": pa.array([e["utc_ns"] for e in events], pa.int64()),
            "mono_ns": pa.array([e["mono_ns"] for e in events], pa.int64()),
            "values": pa.array(
                [json.dumps({k: v for k, v in e.items() if k not in fixed}) for e in events], pa.string()
            ),
        }
    )
    pq.write_table(table, path)
