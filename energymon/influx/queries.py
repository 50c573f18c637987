"""Points out of a bucket through InfluxQL, which InfluxDB 1.8, 2.3 and later, and 3 answer."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from energymon.errors import StoreError
from energymon.influx.client import unexpected
from energymon.influx.settings import InfluxSettings

if TYPE_CHECKING:
    from influxdb_client.client.influxdb_client import InfluxDBClient


MIN_NS: Final = -(2**63) + 2
MAX_NS: Final = 2**63 - 2
"""The first and the last instant, UTC ns, that InfluxDB knows."""


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


class PointReader:
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
        if "not found" in result.get("error", ""):
            raise StoreError(
                f"there is no {self._settings} ({result['error']}); make it, or correct INFLUXDB_V2_BUCKET "
                "(InfluxDB 2.0 to 2.2 need `influx v1 dbrp create` for the bucket too)"
            )
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
