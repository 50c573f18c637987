"""The table that every benchmark prints: the demand, the measured figure, and whether it is met."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Line", "show"]


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table."""

    what: str
    asked: str
    measured: str
    met: bool | None = None
    """None where nothing is asked."""


def show(lines: Iterable[Line], *, widths: tuple[int, int, int] = (58, 14, 46)) -> int:
    """Print each line as soon as it is measured; return how many fall short.

    `widths` are the columns' in characters; longer text pushes the rest of its line to the right.
    """
    columns = " ".join(f"{{:<{width}}}" for width in widths) + " {}"
    print(columns.format("demand", "asked", "measured", "verdict"), flush=True)
    short = 0
    for line in lines:
        verdict = "" if line.met is None else "met" if line.met else "SHORT"
        print(columns.format(line.what, line.asked, line.measured, verdict).rstrip(), flush=True)
        short += line.met is False
    return short
