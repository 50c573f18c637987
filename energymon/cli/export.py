"""What a store holds, written to a file: readings or energy tuples as Parquet, CSV or line protocol."""

from __future__ import annotations

import csv
import io
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, BinaryIO, Final, Literal, cast, get_args

from energymon.analysis.integrate import require_order
from energymon.analysis.sessions import chunks, session_spans
from energymon.analysis.tuples import stored_tuples
from energymon.errors import OptionError
from energymon.reading import Reading, Session
from energymon.store import SqliteStore

if TYPE_CHECKING:
    import pyarrow as pa


READING_COLUMNS: Final = {
    "tick_ns": "tick of the grid that the reading belongs to, UTC ns of the node",
    "t_ns": "when the value was read, UTC ns of the node",
    "node": "name of the host",
    "device": "package-0, gpu-1, ...; a socket's DRAM has the socket's name",
    "domain": "cpu, dram or gpu; module and wall contain them",
    "source": "rapl-perf, rapl-powercap, nvml-counter, nvml-power, ...; estimate is no measurement",
    "joules": "cumulative, unwrapped, J",
    "flags": "start: the series starts again here; interpolated: inferred across missed ticks",
    "early_ns": "joules had been used by some instant from so long before t_ns, ns; empty when unknown",
    "late_ns": "and until so long after t_ns, ns",
}
"""Columns of a reading and what they are, in order."""
TUPLE_COLUMNS: Final = {
    "t_ns": "tick t_k, UTC ns of the node",
    "node": "name of the host",
    "cpu_energy": "J since the tick before, all sockets; empty when unknown",
    "memory_energy": "J since the tick before, DRAM of all sockets; empty when unknown",
    "gpu_energy": "J since the tick before, all boards; empty when unknown",
    "cpu_energy_estimate": "J since the tick before where nothing measures the CPU; no part of cpu_energy",
    "cpu_source": "source of cpu_energy, ';' between several; estimate for cpu_energy_estimate",
    "memory_source": "source of memory_energy",
    "gpu_source": "source of gpu_energy",
    "flags": "interpolated: readings were missed here",
}
"""Columns of an energy tuple and what they are, in order."""

Format = Literal["parquet", "csv", "line"]
FORMATS: Final[tuple[Format, ...]] = get_args(Format)

_STDOUT: Final = "-"
_AT_ONCE: Final = 50_000


def export(
    store: SqliteStore,
    out: Path | str,
    format: Format | None = None,
    what: Literal["readings", "tuples"] = "readings",
    *,
    start_ns: int = 0,
    end_ns: int = 2**63 - 1,
    node: str | None = None,
) -> int:
    """Write the readings with a tick in [start, end), UTC ns, or the tuples in between, and return how many.

    The file appears when it is whole; "-" is stdout. Without a format the suffix of the file names it. Lines are those
    that are sent to InfluxDB.
    Raises OptionError when the file cannot be written, StoreError, and WindowError when the end is before the start.
    """
    require_order(start_ns, end_ns)
    columns = READING_COLUMNS if what == "readings" else TUPLE_COLUMNS
    lines = _reading_lines if what == "readings" else _tuple_lines
    rows = _rows(store, what, start_ns, end_ns, node)
    return write_rows(rows, columns, out, format, lines(store, start_ns, end_ns, node))


def write_rows(
    rows: Iterator[Sequence[object]],
    columns: dict[str, str],
    out: Path | str,
    format: Format | None,
    lines: Iterable[str] | None = None,
) -> int:
    """Write rows of columns, which are described, to a file or "-", stdout, and return how many; or lines instead.

    Without a format the suffix of the file names it. Raises OptionError when the file cannot be written.
    """
    if not str(out) or not Path(out).name:
        raise OptionError(f"--out {str(out)!r}: expected the name of a file, or - for stdout")
    if format is None:
        format = cast(Format, Path(out).suffix.removeprefix("."))
        known = [one for one in FORMATS if one != "line" or lines is not None]
        if format not in known:
            raise OptionError(f"--out {str(out)!r}: expected .{', .'.join(known)} at its end, or --format")

    def write(file: IO[bytes]) -> int:
        if format == "parquet":
            return _write_parquet(rows, file, columns)
        text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
        each = (text.write(f"{line}\n") for line in lines or ())
        count = _write_csv(rows, text, columns) if format == "csv" else _count(each)
        text.detach()
        return count

    if str(out) != _STDOUT:
        with _appearing(Path(out)) as file:
            return write(file)
    if format == "parquet":
        raise OptionError("--out -: Parquet is not written to stdout; name a file, or take another --format")
    sys.stdout.flush()
    return write(sys.stdout.buffer)


def save_readings(readings: Iterable[Reading], path: Path) -> None:
    """Write readings as Parquet, a row each, in the columns of `export`; raises OSError."""
    with path.open("wb") as file:
        _write_parquet(iter(readings), file, READING_COLUMNS)


def _rows(store: SqliteStore, what: str, start_ns: int, end_ns: int, node: str | None) -> Iterator[tuple[object, ...]]:
    if what == "tuples":
        return (
            tuple(getattr(found, name) for name in TUPLE_COLUMNS)
            for found in stored_tuples(store, start_ns, end_ns, node)
        )
    return (r for _, readings in _readings(store, start_ns, end_ns, node) for r in readings)


def _readings(
    store: SqliteStore, start_ns: int, end_ns: int, node: str | None
) -> Iterator[tuple[Session, list[Reading]]]:
    """Yield each reading once, by session and part of time, in order of its tick and then of its series."""
    for session, begins, ends in session_spans(store, start_ns, end_ns, node):
        for begin, stop in chunks(begins, ends, session.interval_ns):
            found = [r for r in store.readings(begin, stop, session.node) if begin <= r.tick_ns < stop]
            yield session, sorted(found, key=lambda r: (r.tick_ns, r.device, r.domain, r.source))


def _reading_lines(store: SqliteStore, start_ns: int, end_ns: int, node: str | None) -> Iterator[str]:
    from energymon.influx.lineprotocol import energy_prefix, reading_lines

    for session, readings in _readings(store, start_ns, end_ns, node):
        ids: dict[str, int] = {}
        rows = []
        for r in readings:
            prefix = energy_prefix(r.node, r.device, r.domain, r.source, session.name)
            rows.append((r.tick_ns, ids.setdefault(prefix, len(ids)), r.t_ns, r.joules, r.flags, r.early_ns, r.late_ns))
        yield from reading_lines(rows, {number: prefix for prefix, number in ids.items()})


def _tuple_lines(store: SqliteStore, start_ns: int, end_ns: int, node: str | None) -> Iterator[str]:
    from energymon.influx.lineprotocol import run_of, tuple_line

    for session, begins, ends in session_spans(store, start_ns, end_ns, node):
        run = run_of(session)
        for found in stored_tuples(store, begins, ends, session.node):
            yield tuple_line(found, run)


def _write_csv(rows: Iterable[Sequence[object]], file: IO[str], columns: Iterable[str]) -> int:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    return _count(map(writer.writerow, rows))


def _count(written: Iterable[object]) -> int:
    """Take all items, which writes them, and return how many there were."""
    return sum(1 for _ in written)


def _write_parquet(rows: Iterator[Sequence[object]], file: IO[bytes], columns: dict[str, str]) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([pa.field(name, _type(name), metadata={"description": doc}) for name, doc in columns.items()])
    count = 0
    with pq.ParquetWriter(file, schema) as writer:
        while batch := list(islice(rows, _AT_ONCE)):
            cells = zip(*batch, strict=True)
            arrays = [pa.array(column, field.type) for column, field in zip(cells, schema, strict=True)]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
            count += len(batch)
    return count


def _type(column: str) -> pa.DataType:
    import pyarrow as pa

    if column.endswith("_ns"):
        return pa.int64()
    floats = "joules", "_j", "_share", "_g", "cost", "_energy", "_energy_estimate"
    return pa.float64() if column.endswith(floats) else pa.string()


@contextmanager
def _appearing(out: Path) -> Iterator[BinaryIO]:
    """Give a file to write, which appears at `out` when it is whole."""
    try:
        if out.exists() and not out.is_file():
            raise OptionError(f"{out}: is no regular file; expected one, or - for stdout")
        partial = out.with_name(f".{out.name}.{os.getpid()}.partial")
        try:
            with partial.open("wb") as file:
                yield file
            partial.replace(out)
        finally:
            with suppress(OSError):
                partial.unlink(missing_ok=True)
    except OSError as error:
        raise OptionError(f"{out}: cannot be written: {error.strerror or error}; name another --out") from error
