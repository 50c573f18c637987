"""The daemon's counters, and its log: one JSON object a line on standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, TypeAlias

Log: TypeAlias = Callable[..., None]
"""Writes an event, and its fields by name."""


@dataclass(slots=True)
class DaemonCounters:
    """Counts since the daemon started."""

    requests: int = 0
    batches: int = 0
    bytes: int = 0
    """Bytes of records that were sent."""
    from_disk: int = 0
    """Batches of which something was not in the page cache."""
    refused: int = 0
    """Well-formed requests for what does not exist."""
    malformed: int = 0
    """Messages that are no requests; they get no answer."""
    dropped: int = 0
    """Requests of clients that are gone, or that ask on and on without reading; they get no answer."""
    full: int = 0
    """Connections that were closed at once because there were as many as there may be."""

    def count(self, event: Literal["malformed", "dropped", "full"], number: int, log: Log, **fields: object) -> None:
        """Count so many events that peers can cause; log them where the count passes a power of two."""
        before = getattr(self, event)
        setattr(self, event, before + number)
        if (before + number).bit_length() > before.bit_length():
            log(event, count=before + number, **fields)


def log(event: str, /, **fields: object) -> None:
    """Write an event with the UTC time and its fields to standard error."""
    line = {"t_utc": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": event, **fields}
    sys.stderr.write(json.dumps(line) + "\n")
    sys.stderr.flush()
