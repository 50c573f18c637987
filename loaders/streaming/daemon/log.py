"""The daemon's log: one JSON object a line on standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TypeAlias

__all__ = ["Log", "log"]

Log: TypeAlias = Callable[..., None]
"""Writes an event, and its fields by name."""


def log(event: str, /, **fields: object) -> None:
    """Write an event with the UTC time and its fields to standard error."""
    line = {"t_utc": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": event, **fields}
    sys.stderr.write(json.dumps(line) + "\n")
    sys.stderr.flush()
