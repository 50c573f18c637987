"""The run's append-only ledger: what happened to each cell, and when."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

__all__ = ["Entry", "Ledger"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the ledger."""

    t_utc: str
    cell_id: str
    """Empty for what concerns the whole run."""
    event: str
    """started, done, failed, interrupted or resumed."""
    message: str = ""


class Ledger:
    """Appends one JSON line an event and syncs it to disk; a torn last line is skipped on reading."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, event: str, cell_id: str = "", message: str = "") -> None:
        """Write one entry; it is on disk when this returns."""
        entry = {
            "t_utc": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "cell_id": cell_id,
            "event": event,
            "message": message,
        }
        torn = self.path.exists() and not self.path.read_bytes().endswith(b"\n")
        with self.path.open("a", encoding="utf-8") as file:
            if torn and file.tell():
                file.write("\n")
            file.write(json.dumps(entry) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def entries(self) -> list[Entry]:
        """Return the whole entries, oldest first."""
        if not self.path.exists():
            return []
        found: list[Entry] = []
        for line in self.path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                found.append(Entry(**json.loads(line)))
            except (ValueError, TypeError):
                continue
        return found
