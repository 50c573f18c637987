"""Readings and what belongs to them as InfluxDB's points.

| measurement | tags | fields | time |
|---|---|---|---|
| energy | node, device, domain, source, session | joules, offset_ns; early_ns, late_ns, flags if any | tick |
| ticks | node, session | missed, 0 or 1 | tick |
| events | node, kind, n | message | its time |
| sessions | node, session | interval_ns, description, end_ns and cpu_s when it has ended | start |
| tuples | node_id, run | cpu_energy, memory_energy, gpu_energy: J used since the tick before; see `tuple_line` | tick |
| epochs | node_id, run, cell, loader | epoch, start_ns and end_ns, whole numbers; duration_s | start |

Every number but those of `epochs` is a float field. What a float cannot hold exactly, such as UTC ns, is the point's
time, a string, or a difference: a reading's `offset_ns` is its own time minus its tick's. The tag `n` counts the events
of a node in one nanosecond, which would be one point without it. Line breaks and backslashes of a message are escaped.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from math import isfinite
from typing import Any, Final

from energymon.analysis.tuples import EnergyTuple
from energymon.clock.monotonic import NS
from energymon.reading import ESTIMATE, INTERPOLATED, EpochMark, Event, Session

RawReading = tuple[int, int, int, float, str, int | None, int]
"""A row of the store: tick (UTC ns), the series' id, time (UTC ns), cumulative joules, flags, early_ns, late_ns."""

_TAG_ESCAPES: Final = str.maketrans({",": "\\,", "=": "\\=", " ": "\\ "})
_FIELD_ESCAPES: Final = str.maketrans({'"': '\\"', "\\": "\\\\"})
# A server's CSV has its own line ends, and puts them into texts too.
_LINE_ESCAPES: Final = str.maketrans({"\\": "\\\\", "\n": "\\n", "\r": "\\r"})


def energy_prefix(session: str, node: str, device: str, domain: str, source: str) -> str:
    """Return how every line of one series begins, up to its fields."""
    return _line_prefix("energy", device=device, domain=domain, node=node, session=session, source=source)


def reading_lines(rows: Iterable[RawReading], prefixes: Mapping[int, str]) -> list[str]:
    """Return one line a reading; `prefixes` has the `energy_prefix` of each series' id."""
    return [
        f"{prefixes[series]} joules={joules!r},offset_ns={t_ns - tick_ns}"
        f"{f',late_ns={late_ns}' if late_ns else ''}{'' if early_ns is None else f',early_ns={early_ns}'}"
        f"{',flags=' + _field_text(flags) if flags else ''} {tick_ns}"
        for tick_ns, series, t_ns, joules, flags, early_ns, late_ns in rows
    ]


def tick_lines(rows: Iterable[tuple[int, int]], node: str, session: str) -> list[str]:
    """Return one line a tick, from its time (UTC ns) and whether it was missed."""
    prefix = _line_prefix("ticks", node=node, session=session)
    return [f"{prefix} missed={missed} {tick_ns}" for tick_ns, missed in rows]


def event_line(event: Event, n: int) -> str:
    """Return an event's line; `n` counts the events of its node and its nanosecond, from 0."""
    prefix = _line_prefix("events", kind=event.kind, n=str(n), node=event.node)
    return f"{prefix} message={_field_text(event.message.translate(_LINE_ESCAPES))} {event.t_ns}"


def session_line(session: Session) -> str:
    """Return a session's line; the one of its end adds to the one of its begin."""
    fields = f"interval_ns={session.interval_ns},description={_field_text(json.dumps(dict(session.description)))}"
    if session.end_ns is not None:
        fields += f',end_ns="{session.end_ns}"'
    if session.cpu_s is not None:
        fields += f",cpu_s={session.cpu_s!r}"
    return f"{_line_prefix('sessions', node=session.node, session=session.name)} {fields} {session.start_ns}"


def tuple_line(found: EnergyTuple, run: str) -> str:
    """Return an energy tuple's line: the joules of each domain that its node has used since the tick before.

    A domain with several devices has a field for each too, `gpu_energy_gpu-1`. An estimate has a field of its own,
    `cpu_energy_estimate`. `cpu_source` and so on name the sensors; `interpolated` is true where readings were missed.
    An unknown value has no field.
    """
    fields: list[str] = []
    devices: Mapping[Any, Mapping[str, float]] = found.devices
    for name, domain, joules, source in (
        ("cpu", "cpu", found.cpu_energy, found.cpu_source),
        ("memory", "dram", found.memory_energy, found.memory_source),
        ("gpu", "gpu", found.gpu_energy, found.gpu_source),
    ):
        if joules is not None and isfinite(joules):
            fields += [f"{name}_energy={joules!r}", f"{name}_source={_field_text(source)}"]
        if source != ESTIMATE:
            each = sorted(devices.get(domain, {}).items())
            fields += [f"{name}_energy_{_key(device)}={of!r}" for device, of in each if isfinite(of)]
    if found.cpu_energy_estimate is not None:
        fields += [f"cpu_energy_estimate={found.cpu_energy_estimate!r}", f"cpu_source={_field_text(ESTIMATE)}"]
    if found.flags == INTERPOLATED:
        fields.append("interpolated=true")
    return f"{_line_prefix('tuples', node_id=found.node, run=run)} {','.join(fields)} {found.t_ns}"


def epoch_line(mark: EpochMark) -> str:
    """Return the line of an epoch."""
    prefix = _line_prefix("epochs", cell=mark.cell, loader=mark.loader, node_id=mark.node, run=mark.run)
    duration_s = (mark.end_ns - mark.start_ns) / NS
    fields = f"epoch={mark.epoch}i,start_ns={mark.start_ns}i,end_ns={mark.end_ns}i,duration_s={duration_s!r}"
    return f"{prefix} {fields} {mark.start_ns}"


def run_of(session: Session) -> str:
    """Return the run that a session's agent was started for, by default the session's own name."""
    return str(session.description.get("run") or session.name)


@lru_cache
def _line_prefix(measurement: str, **tags: str) -> str:
    """Return how a line begins, up to its fields."""
    # Sorted by key, which spares the server the sorting.
    return measurement + "".join(f",{key}={_key(value)}" for key, value in sorted(tags.items()))


def _field_text(text: str) -> str:
    return f'"{text.translate(_FIELD_ESCAPES)}"'


@lru_cache
def _key(text: str) -> str:
    """Return a tag's value, or a field's name, as a line has it.

    Line protocol has no way to write a newline in a tag, or a backslash before a comma, and servers drop tags
    with characters that are not printable. Such characters, and the percent sign, are percent-encoded.
    """
    encoded = (
        c if c.isprintable() and c not in "\\%\ufffd" else "".join(f"%{byte:02X}" for byte in c.encode()) for c in text
    )
    return "".join(encoded).translate(_TAG_ESCAPES)
