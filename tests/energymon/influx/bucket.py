"""What a bucket holds, read back by InfluxQL, in the form of a store."""

import json
import re
from urllib.parse import unquote

from energymon.reading import Event, Reading, Session, Ticks

FIRST_NS, LAST_NS = -(2**63) + 2, 2**63 - 2
"""The first and the last instant, UTC ns, that InfluxDB knows."""


class Bucket:
    """A bucket open for reading."""

    def __init__(self, settings):
        self._settings, self._client = settings, settings.client()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._client.close()

    def readings(self, start_ns, end_ns, node=None):
        """Return the readings in [start, end], UTC ns, and two more of each series on either side, as a store does."""
        found = {}
        for point in self._points("energy"):
            reading = to_reading(*point)
            if node in (None, reading.node):
                rows = found.setdefault((reading.node, reading.device, reading.domain, reading.source), {})
                rows[reading.tick_ns, reading.t_ns, reading.joules] = reading  # two sessions may share a tick
        chosen = []
        for _, rows in sorted(found.items()):
            ordered = sorted(rows.values(), key=lambda reading: reading.tick_ns)
            before = [r.tick_ns for r in ordered if r.tick_ns <= start_ns and r.t_ns <= start_ns]
            after = [r.tick_ns for r in ordered if r.tick_ns >= end_ns and r.t_ns >= end_ns]
            first, last = min(before[-2:], default=FIRST_NS), max(after[:2], default=LAST_NS)
            chosen += [reading for reading in ordered if first <= reading.tick_ns <= last]
        return chosen

    def ticks(self, start_ns, end_ns):
        """Return the ticks in [start, end), UTC ns; one that two sessions have is missed when either says so."""
        found = {}
        for tags, t_ns, fields in self._points("ticks"):
            node, missed = text_of(tags["node"]), bool(fields["missed"])
            if start_ns <= t_ns < end_ns and (missed or (t_ns, node) not in found):
                found[t_ns, node] = Ticks(t_ns, node, missed)
        return [tick for _, tick in sorted(found.items())]

    def events(self):
        found = sorted(self._points("events"), key=lambda p: (p[1], text_of(p[0]["node"]), int(p[0]["n"])))
        return [to_event(*point) for point in found]

    def sessions(self):
        return sorted((to_session(*p) for p in self._points("sessions")), key=lambda s: (s.start_ns, s.node, s.name))

    def _points(self, measurement):
        """Yield tags, time (UTC ns) and fields of every point."""
        query = f'SELECT *::field FROM "{measurement}" WHERE time >= {FIRST_NS} AND time < {LAST_NS} GROUP BY *'
        answer = self._client.api_client.call_api(
            "/query",
            "POST",
            header_params={"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"},
            post_params=list({"db": self._settings.bucket, "epoch": "ns", "q": query}.items()),
            response_type="object",
            _return_http_data_only=True,
            _preload_content=False,
        )
        (result,) = json.loads(answer.data)["results"]
        assert "error" not in result, result
        for series in result.get("series", ()):
            tags = {key: value for key, value in series.get("tags", {}).items() if value}
            for t_ns, *values in series["values"]:
                fields = zip(series["columns"][1:], values, strict=True)
                yield tags, t_ns, {name: value for name, value in fields if value is not None}


def text_of(value):
    """Return the text of a stored tag."""
    return unquote(value, errors="strict") if "%" in value else value


def to_reading(tags, time_ns, fields):
    early_ns = fields.get("early_ns")
    return Reading(
        time_ns,
        time_ns + int(fields["offset_ns"]),
        *(text_of(tags[name]) for name in ("node", "device", "domain", "source")),
        float(fields["joules"]),
        str(fields.get("flags") or ""),
        None if early_ns is None else int(early_ns),
        int(fields.get("late_ns", 0)),
    )


def to_event(tags, time_ns, fields):
    message = re.sub(r"\\(.)", lambda found: {"n": "\n", "r": "\r"}.get(found[1], found[1]), fields["message"])
    return Event(time_ns, text_of(tags["node"]), text_of(tags["kind"]), message)


def to_session(tags, time_ns, fields):
    end_ns, cpu_s = fields.get("end_ns"), fields.get("cpu_s")
    return Session(
        text_of(tags["session"]),
        text_of(tags["node"]),
        time_ns,
        None if end_ns is None else int(end_ns),
        int(fields["interval_ns"]),
        None if cpu_s is None else float(cpu_s),
        json.loads(fields["description"]),
    )
