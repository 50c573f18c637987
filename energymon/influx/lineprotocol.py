"""Readings and what belongs to them as InfluxDB's points.

| measurement | tags | fields | time |
|---|---|---|---|
| energy | node, device, domain, source, session | joules, offset_ns; early_ns, late_ns, flags if any | tick |
| ticks | node, session | missed, 0 or 1 | tick |
| events | node, kind, n | message | its time |
| sessions | node, session | interval_ns, description, end_ns and cpu_s when it has ended | start |
| tuples | node_id, run | cpu_energy, memory_energy, gpu_energy: J used since the tick before; see `tuple_line` | tick |
| epochs | node_id, run, cell, loader | epoch, start_ns and end_ns, whole numbers; duration_s | start |

Every number but those of `epochs` is a float field.
What a float cannot hold exactly, UTC ns and offsets of any size, is the point's time, a string, or a difference: a
reading's `offset_ns` is its own time minus its tick's. The store alone has clock offsets, baselines and counters.
The tag `n` counts the events of a node in one nanosecond, which would be one point without it. Line breaks and
backslashes of a message are written as \\n, \\r and \\\\.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from math import isfinite
from typing import Final, cast

from energymon.analysis.tuples import EnergyTuple
from energymon.clock.monotonic import NS
from energymon.reading import ESTIMATE, INTERPOLATED, Domain, EpochMark, Event, Session

ENERGY: Final = "energy"
TICKS: Final = "ticks"
EVENTS: Final = "events"
SESSIONS: Final = "sessions"
TUPLES: Final = "tuples"
EPOCHS: Final = "epochs"

RawReading = tuple[int, int, int, float, str, int | None, int]
"""Tick (UTC ns), the series' id, time (UTC ns), cumulative joules, flags, early_ns, late_ns: a row of the
SQLite store."""

_TAG_ESCAPES: Final = str.maketrans({",": "\\,", "=": "\\=", " ": "\\ "})
_FIELD_ESCAPES: Final = str.maketrans({'"': '\\"', "\\": "\\\\"})

# A server's CSV has its own line ends, and puts them into texts too.
_LINE_ESCAPES: Final = str.maketrans({"\\": "\\\\", "\n": "\\n", "\r": "\\r"})


def tag_value(text: str) -> str:
    """Return a tag's text as it is stored: characters that a tag cannot hold are encoded.

    Line protocol has no way to write a newline in a tag, or a backslash before a comma, and servers drop tags
    with characters that are not printable. Such characters, and the percent sign, are percent-encoded.
    """
    if text.isprintable() and not any(c in text for c in "\\%\ufffd"):
        return text
    return "".join(
        c if c.isprintable() and c not in "\\%\ufffd" else "".join(f"%{byte:02X}" for byte in c.encode()) for c in text
    )


def field_text(text: str) -> str:
    """Return a text as a string field is written."""
    return f'"{text.translate(_FIELD_ESCAPES)}"'


def energy_prefix(node: str, device: str, domain: str, source: str, session: str) -> str:
    """Return how every line of one series begins, up to its fields."""
    return line_prefix(ENERGY, device=device, domain=domain, node=node, session=session, source=source)


def reading_lines(rows: Iterable[RawReading], prefixes: Mapping[int, str]) -> list[str]:
    """Return one line a reading; `prefixes` has the `energy_prefix` of each series' id."""
    return [
        f"{prefixes[series]} joules={joules!r},offset_ns={t_ns - tick_ns}"
        f"{f',late_ns={late_ns}' if late_ns else ''}{'' if early_ns is None else f',early_ns={early_ns}'}"
        f"{',flags=' + field_text(flags) if flags else ''} {tick_ns}"
        for tick_ns, series, t_ns, joules, flags, early_ns, late_ns in rows
    ]


def tick_lines(rows: Iterable[tuple[int, int]], node: str, session: str) -> list[str]:
    """Return one line a tick, from its time (UTC ns) and whether it was missed."""
    prefix = line_prefix(TICKS, node=node, session=session)
    return [f"{prefix} missed={missed} {tick_ns}" for tick_ns, missed in rows]


def event_line(event: Event, n: int) -> str:
    """Return an event's line; `n` counts the events of its node and its nanosecond, from 0."""
    prefix = line_prefix(EVENTS, kind=event.kind, n=str(n), node=event.node)
    return f"{prefix} message={field_text(event.message.translate(_LINE_ESCAPES))} {event.t_ns}"


def session_line(session: Session) -> str:
    """Return a session's line; the one of its end adds to the one of its begin."""
    fields = f"interval_ns={session.interval_ns},description={field_text(json.dumps(dict(session.description)))}"
    if session.end_ns is not None:
        fields += f',end_ns="{session.end_ns}"'
    if session.cpu_s is not None:
        fields += f",cpu_s={session.cpu_s!r}"
    return f"{line_prefix(SESSIONS, node=session.node, session=session.name)} {fields} {session.start_ns}"


def tuple_line(found: EnergyTuple, run: str) -> str:
    """Return an energy tuple's line: the joules of each domain that its node has used since the tick before.

    A domain with several devices has a field for each too, `gpu_energy_gpu-1`. Joules that are an estimate have a field
    of their own, `cpu_energy_estimate`, so that no sum of `cpu_energy` holds any. `cpu_source` and so on name the
    sensors; `interpolated` is true where readings were missed. An unknown value has no field.
    """
    fields: list[str] = []
    for name, domain, joules, source in (
        ("cpu", "cpu", found.cpu_energy, found.cpu_source),
        ("memory", "dram", found.memory_energy, found.memory_source),
        ("gpu", "gpu", found.gpu_energy, found.gpu_source),
    ):
        if joules is not None and isfinite(joules):
            fields += [f"{name}_energy={joules!r}", _source_field(name, source)]
        if source != ESTIMATE and domain in found.devices:
            devices = sorted(found.devices[cast(Domain, domain)].items())
            fields += [f"{name}_energy_{_key(device)}={of!r}" for device, of in devices if isfinite(of)]
    if found.cpu_energy_estimate is not None:
        fields += [f"cpu_energy_estimate={found.cpu_energy_estimate!r}", _source_field("cpu", ESTIMATE)]
    if found.flags == INTERPOLATED:
        fields.append("interpolated=true")
    return f"{_tuples_prefix(found.node, run)} {','.join(fields)} {found.t_ns}"


def epoch_line(mark: EpochMark) -> str:
    """Return the line of an epoch."""
    prefix = line_prefix(EPOCHS, cell=mark.cell, loader=mark.loader, node_id=mark.node, run=mark.run)
    duration_s = (mark.end_ns - mark.start_ns) / NS
    fields = f"epoch={mark.epoch}i,start_ns={mark.start_ns}i,end_ns={mark.end_ns}i,duration_s={duration_s!r}"
    return f"{prefix} {fields} {mark.start_ns}"


def run_of(session: Session) -> str:
    """Return the run that a session's agent was started for, by default the session's own name."""
    return str(session.description.get("run") or session.name)


def line_prefix(measurement: str, **tags: str) -> str:
    """Return how a line begins, up to its fields."""
    # Sorted by key, which spares the server the sorting.
    return measurement + "".join(f",{key}={_key(value)}" for key, value in sorted(tags.items()))


@lru_cache
def _tuples_prefix(node: str, run: str) -> str:
    return line_prefix(TUPLES, node_id=node, run=run)


@lru_cache
def _source_field(domain: str, source: str) -> str:
    return f"{domain}_source={field_text(source)}"


def _key(text: str) -> str:
    """Return a tag's value, or a field's name, as a line has it."""
    return tag_value(text).translate(_TAG_ESCAPES)
