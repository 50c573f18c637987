"""What a bucket answers, whatever language it was asked in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

__all__ = ["MAX_NS", "MIN_NS", "PointReader", "Series", "Tags"]

MIN_NS: Final = -(2**63) + 2
MAX_NS: Final = 2**63 - 2
"""The first and the last instant, UTC ns, that InfluxDB knows."""

Tags = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Series:
    """Points with the same tags."""

    tags: Mapping[str, str]
    fields: Mapping[str, dict[int, float | str]]
    """Values by time (UTC ns), by field."""

    def points(self) -> Iterator[tuple[int, dict[str, float | str]]]:
        """Yield each point's time, UTC ns, and its fields, by time."""
        times = sorted(set().union(*self.fields.values()))
        for t_ns in times:
            yield t_ns, {name: values[t_ns] for name, values in self.fields.items() if t_ns in values}


class PointReader(Protocol):
    """Reads points of a bucket; raises what influxdb-client and urllib3 raise, and StoreError for a failed query."""

    def select(self, measurement: str, start_ns: int, stop_ns: int, tags: Mapping[str, str]) -> list[Series]:
        """Return the points of every series of a measurement in [start, stop), UTC ns, that has these tags."""
        ...

    def edge(
        self, measurement: str, field: str, start_ns: int, stop_ns: int, tags: Mapping[str, str], *, last: bool
    ) -> list[Series]:
        """Return each series' first or last point that has `field`, with that field alone."""
        ...
