"""The epoch rows of a results folder, as `epochs.csv` holds them."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass
from pathlib import Path

from harness.errors import ResultsError
from harness.report.reading import COLLECT, reading
from harness.results.epochs import EpochRow as MeasuredRow

__all__ = ["COLUMNS", "DOMAINS", "EpochRow", "read_rows"]

COLUMNS = MeasuredRow.columns()
_ADDED = frozenset({"jitter_ms", "loss_pct"})
"""Columns that older folders lack; their config has both."""
DOMAINS = ("cpu", "dram", "gpu")


@dataclass(frozen=True, slots=True)
class EpochRow:
    """One epoch of one cell; None is unknown, never 0."""

    cell_id: str
    workload: str
    dataset: str
    loader: str
    regime: str
    rtt_ms: float
    repeat: int
    epoch: int
    duration_s: float | None
    samples: int | None
    bytes: int | None
    samples_per_s: float | None
    mb_per_s: float | None
    stall_s: float | None
    au: float | None
    """Accelerator utilisation, 0 to 1."""
    cpu_util: float | None
    """Of the whole host, 0 to 1, as is that of the cell's board."""
    gpu_util: float | None
    joules: dict[str, float]
    """Joules by domain; a domain that nothing measured or estimated is absent."""
    total_j: float | None
    energy_error_j: float | None
    """Bound of total_j's error; None where it is not known, as for an estimate."""
    energy_source: dict[str, str]
    """Source by domain: rapl-powercap, nvml-counter, estimate, …"""
    verdict: str
    """valid, "invalid: rules" or "failed: reason"."""

    @property
    def is_valid(self) -> bool:
        """Whether every validity rule let the row pass."""
        return self.verdict == "valid"

    @property
    def estimated(self) -> frozenset[str]:
        """Domains whose joules are an estimate."""
        return frozenset(domain for domain, source in self.energy_source.items() if "estimate" in source)


def read_rows(path: Path) -> tuple[EpochRow, ...]:
    """Read epochs.csv; a file that is not there holds no rows.

    Raises ResultsError naming the line and column that cannot be read.
    """
    if not path.exists():
        return ()
    with reading(path, COLLECT):
        text = path.read_text(encoding="utf-8")
        if not text.endswith("\n"):
            raise ValueError("its last line is cut short")
        reader = csv.DictReader(io.StringIO(text, newline=""))
        missing = [name for name in COLUMNS if name not in {*(reader.fieldnames or []), *_ADDED}]
        if missing:
            raise ResultsError(
                f"{path}: column {', '.join(missing)} is missing; expected the columns {', '.join(COLUMNS)}"
            )
        return tuple(_row(_Record(path, reader.line_num, record)) for record in reader)


@dataclass(frozen=True, slots=True)
class _Record:
    path: Path
    line: int
    fields: dict[str, str | None]

    def text(self, name: str) -> str:
        return (self.fields[name] or "").strip()

    def number(self, name: str) -> float | None:
        text = self.text(name)
        if not text:
            return None
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise ResultsError(
                f"{self.path}, line {self.line}, column {name}: {text!r} is not a number; "
                f"expected a number, or nothing for unknown; {COLLECT}"
            )
        return value

    def known(self, name: str) -> float:
        value = self.number(name)
        if value is None:
            raise ResultsError(f"{self.path}, line {self.line}, column {name}: expected a number, got nothing")
        return value

    def count(self, name: str) -> int | None:
        value = self.number(name)
        if value is not None and not value.is_integer():
            raise ResultsError(f"{self.path}, line {self.line}, column {name}: {value} is no whole number; {COLLECT}")
        return None if value is None else int(value)


def _row(record: _Record) -> EpochRow:
    if None in record.fields.values():
        raise ResultsError(f"{record.path}, line {record.line}: the row is cut short; {COLLECT}")
    joules = {domain: record.number(f"{domain}_j") for domain in DOMAINS}
    return EpochRow(
        cell_id=record.text("cell_id"),
        workload=record.text("workload"),
        dataset=record.text("dataset"),
        loader=record.text("loader"),
        regime=record.text("regime"),
        rtt_ms=record.known("rtt_ms"),
        repeat=record.count("repeat") or 0,
        epoch=record.count("epoch") or 0,
        duration_s=record.number("duration_s"),
        samples=record.count("samples"),
        bytes=record.count("bytes"),
        samples_per_s=record.number("samples_per_s"),
        mb_per_s=record.number("mb_per_s"),
        stall_s=record.number("stall_s"),
        au=record.number("au"),
        cpu_util=record.number("cpu_util"),
        gpu_util=record.number("gpu_util"),
        joules={domain: value for domain, value in joules.items() if value is not None},
        total_j=record.number("total_j"),
        energy_error_j=record.number("energy_error_j"),
        energy_source=_sources(record.text("energy_source")),
        verdict=record.text("valid") or "invalid: not judged",
    )


def _sources(text: str) -> dict[str, str]:
    pairs = (part.partition("=") for part in text.split(";") if part.strip())
    return {domain.strip(): source.strip() for domain, _, source in pairs}
