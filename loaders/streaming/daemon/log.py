"""The daemon's log: one JSON object a line on standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TypeAlias

__all__ = ["Log", "is_logged", "log"]

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
