"""A table that a figure has beside its picture."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FigureTable"]


@dataclass(frozen=True, slots=True)
class FigureTable:
    """Columns and rows of text; the first column is words, the others are numbers."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    dim: frozenset[int] = frozenset()
    """Rows that are of a paper and not of this run."""
