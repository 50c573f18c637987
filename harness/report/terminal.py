"""Tables on a terminal or in a log: one look, and no number cut where there is little room."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from rich import box
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.table import Table

_LEAST_TEXT = 24
"""Characters to which a column of text may shrink; a longer one breaks its lines."""


def make_plain_table(*columns: str, left: Collection[str] = (), gap: int = 1) -> Table:
    """Return a table with a line below its header, and `gap` spaces more than one between columns.

    No cell of `columns` wraps. They are columns of numbers, on the right, but for those that `left` names.
    """
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, gap, 0, 0), header_style="bold")
    for name in columns:
        table.add_column(name, justify="left" if name in left else "right", no_wrap=True)
    return table


def make_list(rows: Iterable[tuple[RenderableType, RenderableType]], gap: int = 2) -> Table:
    """Return a mark or topic and a text a line, with `gap` spaces between; the text wraps."""
    grid = Table.grid(padding=(0, gap, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for row in rows:
        grid.add_row(*row)
    return grid


def fits(console: Console, table: Table) -> bool:
    """Whether all of a table's numbers have room."""
    return _needed(table) <= console.width


def print_whole(console: Console, table: Table) -> None:
    """Print a table; one that needs more room than there is has longer lines, which a terminal breaks."""
    width = console.width
    console.width = max(width, _needed(table))
    console.print(table)
    console.width = width


def _needed(table: Table) -> int:
    """Return the characters of a line in which no column that must not wrap is cut."""
    gap = table.padding[1]
    total = -1
    for column in table.columns:
        lines = [line for cell in (column.header, *column.cells) for line in str(cell).split("\n")]
        longest = max(map(cell_len, lines))
        total += 1 + gap + (longest if column.no_wrap else min(longest, _LEAST_TEXT))
    return total
