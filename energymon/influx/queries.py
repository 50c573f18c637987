"""Points out of a bucket: through Flux from InfluxDB 1.8 and 2, through InfluxQL from InfluxDB 3."""

from __future__ import annotations

import calendar
import csv
import io
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Protocol

from energymon.errors import StoreError
from energymon.influx.client import unexpected
from energymon.influx.settings import InfluxSettings

if TYPE_CHECKING:
    from influxdb_client.client.influxdb_client import InfluxDBClient

__all__ = ["MAX_NS", "MIN_NS", "FluxReader", "InfluxQLReader", "PointReader", "Series"]

MIN_NS: Final = -(2**63) + 2
MAX_NS: Final = 2**63 - 2
"""The first and the last instant, UTC ns, that InfluxDB knows."""

_ESCAPES: Final = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"})
_NO_TAGS: Final = frozenset({"", "result", "table", "_start", "_stop", "_time", "_value", "_field", "_measurement"})


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


class FluxReader:
    """Reads points; raises what influxdb-client and urllib3 raise, and StoreError for a query that failed midway."""

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
        which = f"|> filter(fn: (r) => r._field == {_flux_text(field)}) |> {'last' if last else 'first'}()"
        return self._run(f"{self._from(measurement, start_ns, stop_ns, tags)} {which}")

    def _from(self, measurement: str, start_ns: int, stop_ns: int, tags: Mapping[str, str]) -> str:
        wanted = [f"r._measurement == {_flux_text(measurement)}"]
        wanted += [f"r[{_flux_text(key)}] == {_flux_text(value)}" for key, value in tags.items()]
        start_ns, stop_ns = (min(max(ns, MIN_NS), MAX_NS) for ns in (start_ns, stop_ns))
        return (
            f"from(bucket: {_flux_text(self._settings.bucket)})"
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
        found: dict[tuple[tuple[str, str], ...], dict[str, dict[int, float | str]]] = {}
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


def _flux_text(text: str) -> str:
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


class InfluxQLReader:
    """Reads points; raises what influxdb-client and urllib3 raise, and StoreError for a query that failed."""

    def __init__(self, client: InfluxDBClient, settings: InfluxSettings) -> None:
        self._client, self._settings = client, settings

    def select(self, measurement: str, start_ns: int, stop_ns: int, tags: Mapping[str, str]) -> list[Series]:
        """Return the points of every series of a measurement in [start, stop), UTC ns, that has these tags."""
        if start_ns >= stop_ns:
            return []
        return self._run("*::field", measurement, start_ns, stop_ns, tags)

    def edge(
        self, measurement: str, field: str, start_ns: int, stop_ns: int, tags: Mapping[str, str], *, last: bool
    ) -> list[Series]:
        """Return each series' first or last point that has `field`, with that field alone."""
        what = f"{'last' if last else 'first'}({_identifier(field)}) AS {_identifier(field)}"
        return self._run(what, measurement, start_ns, stop_ns, tags)

    def _run(self, what: str, measurement: str, start_ns: int, stop_ns: int, tags: Mapping[str, str]) -> list[Series]:
        start_ns, stop_ns = (min(max(ns, MIN_NS), MAX_NS) for ns in (start_ns, stop_ns))
        wanted = [f"time >= {start_ns} AND time < {stop_ns}"]
        wanted += [f"{_identifier(key)} = {_literal(value)}" for key, value in tags.items()]
        query = " ".join(
            ("SELECT", what, "FROM", _identifier(measurement), "WHERE", " AND ".join(wanted), "GROUP BY *")
        )
        database, _, policy = self._settings.bucket.partition("/")
        asked = {"db": database, "epoch": "ns", "q": query, **({"rp": policy} if policy else {})}
        client: Any = self._client.api_client
        answer = client.call_api(
            "/query",
            "POST",
            header_params={"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"},
            post_params=list(asked.items()),
            response_type="object",
            _return_http_data_only=True,
            _preload_content=False,
        )
        if not answer.headers.get("Content-Type", "").startswith("application/json"):
            raise StoreError(unexpected(self._settings, "query", answer.status, answer.headers, answer.data))
        (result,) = json.loads(answer.data)["results"]
        if "error" in result:
            raise StoreError(f"{self._settings}: the query failed: {result['error']}")
        found: list[Series] = []
        for series in result.get("series", ()):
            names = series["columns"][1:]
            fields: dict[str, dict[int, float | str]] = {}
            for t_ns, *values in series["values"]:
                for name, value in zip(names, values, strict=True):
                    if value is not None:
                        fields.setdefault(name, {})[t_ns] = value if isinstance(value, str) else float(value)
            tags_found = {key: value for key, value in series.get("tags", {}).items() if value}
            found.append(Series(tags_found, fields))
        return found


def _identifier(name: str) -> str:
    """Return a quoted identifier."""
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _literal(text: str) -> str:
    """Return a string literal."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n") + "'"
