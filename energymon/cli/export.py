"""What a store holds, written to a file: readings or energy tuples as Parquet or CSV."""

from __future__ import annotations

import csv
import io
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import IO, BinaryIO, Final, Literal, cast

from energymon.analysis.integrate import require_order
from energymon.analysis.sessions import chunks, session_spans
from energymon.analysis.tuples import stored_tuples
from energymon.errors import OptionError
from energymon.reading import Reading
from energymon.store import SqliteStore

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

Format = Literal["parquet", "csv"]
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

    The file appears when it is whole; "-" is stdout. Without a format the suffix of the file names it. Raises
    OptionError for a file that cannot be written, StoreError, and WindowError.
    """
    require_order(start_ns, end_ns)
    asked = store, start_ns, end_ns, node
    if what == "readings":
        return write_rows(_readings(*asked), READING_COLUMNS, out, format)
    rows = (tuple(getattr(found, name) for name in TUPLE_COLUMNS) for found in stored_tuples(*asked))
    return write_rows(rows, TUPLE_COLUMNS, out, format)


def write_rows(
    rows: Iterator[Sequence[object]], columns: dict[str, str], out: Path | str, format: Format | None
) -> int:
    """Write rows of described columns as `export` does; raises OptionError when it cannot."""
    if not str(out) or not Path(out).name:
        raise OptionError(f"--out {str(out)!r}: expected the name of a file, or - for stdout")
    if format is None:
        format = cast(Format, Path(out).suffix.removeprefix("."))
        if format not in ("parquet", "csv"):
            raise OptionError(f"--out {str(out)!r}: expected .parquet or .csv at its end, or --format")

    def write(file: IO[bytes]) -> int:
        if format == "parquet":
            return _write_parquet(rows, file, columns)
        text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(columns)
        count = sum(1 for _ in map(writer.writerow, rows))
        text.detach()
        return count

    if str(out) != "-":
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


def _readings(store: SqliteStore, start_ns: int, end_ns: int, node: str | None) -> Iterator[Reading]:
    """Yield each reading once, in order of its tick and then of its series."""
    for session, begins, ends in session_spans(store, start_ns, end_ns, node):
        for begin, stop in chunks(begins, ends, session.interval_ns):
            found = [r for r in store.readings(begin, stop, session.node) if begin <= r.tick_ns < stop]
            yield from sorted(found, key=lambda r: (r.tick_ns, r.device, r.domain, r.source))


def _write_parquet(rows: Iterator[Sequence[object]], file: IO[bytes], columns: dict[str, str]) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    floats = "joules", "_j", "_share", "_g", "cost", "_energy", "_energy_estimate"
    fields = []
    for name, doc in columns.items():
        kind = pa.int64() if name.endswith("_ns") else pa.float64() if name.endswith(floats) else pa.string()
        fields.append(pa.field(name, kind, metadata={"description": doc}))
    schema = pa.schema(fields)
    count = 0
    with pq.ParquetWriter(file, schema) as writer:
        while batch := list(islice(rows, _AT_ONCE)):
            cells = zip(*batch, strict=True)
            arrays = [pa.array(column, field.type) for column, field in zip(cells, schema, strict=True)]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
            count += len(batch)
    return count


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
