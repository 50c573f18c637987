"""Points out of a bucket through Flux, the query language of InfluxDB 2 and, where it is switched on, 1.8."""

from __future__ import annotations

import calendar
import csv
import io
import time
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from energymon.errors import StoreError
from energymon.influx.client import unexpected
from energymon.influx.points import MAX_NS, MIN_NS, Series, Tags
from energymon.influx.settings import InfluxSettings

if TYPE_CHECKING:
    from influxdb_client.client.influxdb_client import InfluxDBClient

__all__ = ["FluxReader"]

_ESCAPES: Final = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"})
_NO_TAGS: Final = frozenset({"", "result", "table", "_start", "_stop", "_time", "_value", "_field", "_measurement"})


class FluxReader:
    """Reads points; what is raised is influxdb-client's and urllib3's, or StoreError for a query that failed midway."""

    def __init__(self, client: InfluxDBClient, settings: InfluxSettings) -> None:
        self._client, self._settings = client, settings

    def select(self, measurement: str, start_ns: int, stop_ns: int, tags: Mapping[str, str]) -> list[Series]:
        """Return the points of every series of a measurement in [start, stop), UTC ns, that has these tags."""
        if start_ns >= stop_ns:
            # Which Flux takes for a mistake.
            return []
        return self._run(self._from(measurement, start_ns, stop_ns, tags))

    def edge(
        self, measurement: str, field: str, start_ns: int, stop_ns: int, tags: Mapping[str, str], *, last: bool
    ) -> list[Series]:
        """Return each series' first or last point that has `field`, with that field alone."""
        which = f"|> filter(fn: (r) => r._field == {_text(field)}) |> {'last' if last else 'first'}()"
        return self._run(f"{self._from(measurement, start_ns, stop_ns, tags)} {which}")

    def _from(self, measurement: str, start_ns: int, stop_ns: int, tags: Mapping[str, str]) -> str:
        wanted = [f"r._measurement == {_text(measurement)}"]
        wanted += [f"r[{_text(key)}] == {_text(value)}" for key, value in tags.items()]
        start_ns, stop_ns = (min(max(ns, MIN_NS), MAX_NS) for ns in (start_ns, stop_ns))
        return (
            f"from(bucket: {_text(self._settings.bucket)})"
            f" |> range(start: time(v: {start_ns}), stop: time(v: {stop_ns}))"
            f" |> filter(fn: (r) => {' and '.join(wanted)})"
        )

    def _run(self, query: str) -> list[Series]:
        # The bounds and the measurement are known; without them a row is half as long.
        query += ' |> drop(columns: ["_start", "_stop", "_measurement"])'
        answer: Any = self._client.query_api().query_raw(query)
        try:
            if not answer.headers.get("Content-Type", "").startswith("text/csv"):
                raise StoreError(unexpected(self._settings, "query", answer.status, answer.headers, answer.data))
            return self._parsed(csv.reader(io.TextIOWrapper(answer, encoding="utf-8", newline="")))
        finally:
            answer.release_conn()

    def _parsed(self, rows: Iterator[list[str]]) -> list[Series]:
        found: dict[Tags, dict[str, dict[int, float | str]]] = {}
        header: list[str] = []
        at: dict[str, int] = {}
        types: list[str] = []
        table = key = ""
        values: dict[int, float | str] = {}
        text = False
        at_time = at_value = at_table = 0
        for row in rows:
            if not row or row == [""]:
                header, table = [], ""
                continue
            if row[0] == "#datatype":
                types, header = row, []
                continue
            if row[0].startswith("#"):
                continue
            if not header:
                header, table = row, ""
                at = {name: i for i, name in enumerate(row)}
                if "error" in at:
                    raise StoreError(f"{self._settings}: the query failed: {next(rows, ['', ''])[at['error']]}")
                at_time, at_value, at_table = at["_time"], at["_value"], at["table"]
                text = types[at_value] == "string"
                continue
            if row[at_table] != table:
                table, key = row[at_table], row[at["_field"]]
                tags = tuple((name, row[i]) for name, i in at.items() if name not in _NO_TAGS and row[i])
                values = found.setdefault(tags, {}).setdefault(key, {})
            value = row[at_value]
            values[_ns(row[at_time])] = value if text else float(value)
        return [Series(dict(tags), fields) for tags, fields in found.items()]


def _text(text: str) -> str:
    """Return a Flux string literal; `${` would be an expression."""
    escaped = text.translate(_ESCAPES).replace("${", "\\${")
    return f'"{escaped}"'


def _ns(moment: str) -> int:
    """Return UTC ns of an RFC 3339 time."""
    fraction = moment[20:-1]
    return _second_ns(moment[:19]) + (int(fraction.ljust(9, "0")) if fraction else 0)


@lru_cache(maxsize=1024)
def _second_ns(moment: str) -> int:
    return calendar.timegm(time.strptime(moment, "%Y-%m-%dT%H:%M:%S")) * 1_000_000_000
