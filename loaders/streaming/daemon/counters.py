"""The daemon's counters, and its log: one JSON object a line on standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeAlias


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


Log: TypeAlias = Callable[..., None]
"""Writes an event, and its fields by name."""


def is_logged(count: int) -> bool:
    """Return whether the `count`-th event of a kind that peers can cause is logged: the powers of two are."""
    return count & (count - 1) == 0


def log(event: str, /, **fields: object) -> None:
    """Write an event with the UTC time and its fields to standard error."""
    line = {"t_utc": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": event, **fields}
    sys.stderr.write(json.dumps(line) + "\n")
    sys.stderr.flush()
