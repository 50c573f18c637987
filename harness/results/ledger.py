"""The run's append-only ledger: what happened to each cell, and when."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from harness.errors import ResultsError
from harness.results.files import parse_value


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the ledger."""

    t_utc: str
    cell_id: str
    """Empty for an event of the whole run."""
    event: str
    """started, done, failed, interrupted, damaged, resumed or note."""
    message: str = ""


class Ledger:
    """Appends one JSON line per event and syncs it to disk."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, event: str, cell_id: str = "", message: str = "") -> None:
        """Write one entry; it is on disk when this returns."""
        entry = Entry(datetime.now(UTC).isoformat(timespec="milliseconds"), cell_id, event, message)
        with self.path.open("ab+") as file:
            file.seek(0)
            # A killed run may have left a torn last line.
            file.truncate(file.read().rfind(b"\n") + 1)
            file.write((json.dumps(asdict(entry)) + "\n").encode())
            file.flush()
            os.fsync(file.fileno())

    def read_entries(self) -> list[Entry]:
        """Return the entries, oldest first. A torn last line, as a killed run leaves it, is left out.

        Raises ResultsError, which names any other line that cannot be read.
        """
        if not self.path.exists():
            return []
        lines = self.path.read_text(encoding="utf-8", errors="replace").splitlines()
        found: list[Entry] = []
        for number, line in enumerate(lines, start=1):
            try:
                found.append(parse_value(Entry, json.loads(line)))
            except ValueError as error:
                if number < len(lines):
                    why = " ".join(str(error).split())
                    raise ResultsError(
                        f"{self.path}, line {number}: not a ledger entry ({why}); remove the line"
                    ) from error
        return found
