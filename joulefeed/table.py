"""A table as data, and the ways to write it: on a terminal, in HTML, in Markdown and as plain text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from textwrap import fill
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

Style: TypeAlias = Literal["", "strong", "accent", "dim", "good", "warn", "bad"]

_TERMINAL_STYLES: Final = {"strong": "bold", "accent": "cyan", "good": "green", "warn": "yellow", "bad": "red"}
_LEAST_WORDS: Final = 24
"""Characters to which a column that wraps may shrink."""


@dataclass(frozen=True, slots=True)
class TableCell:
    """A text with a style."""

    text: str
    style: Style = ""
    detail: str = ""
    """A dim text below the other one; in plain text it follows in brackets."""

    def __str__(self) -> str:
        """Return both texts."""
        return f"{self.text} ({self.detail})" if self.detail else self.text


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column. Without `left` it is of numbers: they stand on the right, and the name wraps to their width."""

    name: str
    left: bool = False
    wraps: bool = False
    """Whether texts may be broken into lines where there is little room. Other columns are never cut."""
    optional: int = 0
    """Where there is little room, a terminal leaves out the columns with the greatest number; 0 always stays."""
    note: str = ""
    """What the column shows, as a part of the sentence below the table."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of texts below columns. A column given as a name is of numbers, or the first one, which is of words."""

    columns: Sequence[TableColumn | str]
    rows: Sequence[Sequence[TableCell | str]]
    notes: Sequence[str] = ()
    """What the table shows, as parts of the sentence below it."""
    dim: frozenset[int] = frozenset()
    """Rows that matter less, such as those of a paper."""
    sections: frozenset[int] = frozenset()
    """Rows above which there is a line."""

    @property
    def heads(self) -> tuple[TableColumn, ...]:
        """The columns, each as a `TableColumn`."""
        heads = []
        for place, head in enumerate(self.columns):
            words = place == 0
            heads.append(TableColumn(head, left=words, wraps=words) if isinstance(head, str) else head)
        return tuple(heads)

    @property
    def explanation(self) -> str:
        """The sentence below the table: its notes, then those of its columns; empty without any."""
        notes = "; ".join(filter(None, [*self.notes, *dict.fromkeys(head.note for head in self.heads)]))
        return f"{notes[:1].upper()}{notes[1:]}." if notes else ""

    def without(self, optional: int) -> Table:
        """Return the table without the columns that have this number as `optional`."""
        kept = [place for place, head in enumerate(self.heads) if head.optional != optional]
        rows = [[row[place] for place in kept] for row in self.rows]
        return replace(self, columns=[self.heads[place] for place in kept], rows=rows)


def print_table(table: Table, console: Console) -> None:
    """Print a table and its explanation, with the columns for which the terminal has room.

    No number is cut: where even the columns that stay need more room, lines are longer than the terminal is wide.
    """
    from rich.text import Text

    while _measure_width(table) > console.width and (last := max(head.optional for head in table.heads)):
        table = table.without(last)
    gap = 2 if _measure_width(table, 2) <= console.width else 1
    width = console.width
    console.width = max(width, _measure_width(table, gap))
    console.print(make_rich_table(table, gap))
    console.width = width
    if table.explanation:
        console.print(Text(table.explanation, "dim"))


def make_rich_table(table: Table, gap: int = 2) -> RichTable:
    """Return a table as rich prints it, with `gap` spaces more than one between columns."""
    from rich import box
    from rich.table import Table as RichTable

    named = any(head.name for head in table.heads)
    made = RichTable(box=box.SIMPLE_HEAD if named else None, show_edge=False, show_header=named, header_style="bold")
    made.padding = (0, gap + (not named), 0, 0)
    for head, name in zip(table.heads, _break_names(table), strict=True):
        side: Literal["left", "right"] = "left" if head.left else "right"
        made.add_column(name, justify=side, no_wrap=not head.wraps, overflow="fold" if head.wraps else "ellipsis")
    for place, row in enumerate(table.rows):
        style = "dim" if place in table.dim else ""
        made.add_row(*map(_style_text, row), style=style, end_section=place + 1 in table.sections)
    return made


def to_html(table: Table) -> str:
    """Return a table as HTML, without its explanation. Numbers have the class `num`, styles are classes."""
    lines = ["<table>"]
    if any(head.name for head in table.heads):
        heads = "".join(
            f'<th scope="col"{_class("" if head.left else "num")}>{escape(head.name)}</th>' for head in table.heads
        )
        lines.append(f"<thead><tr>{heads}</tr></thead>")
    for place, row in enumerate(table.rows):
        cells = "".join(
            _to_html_cell(cell, head, at) for at, (cell, head) in enumerate(zip(row, table.heads, strict=True))
        )
        classes = ("dim" if place in table.dim else "", "section" if place in table.sections else "")
        lines.append(f"<tr{_class(*classes)}>{cells}</tr>")
    return "\n".join([*lines, "</table>"])


def to_markdown(table: Table) -> str:
    """Return a table as Markdown, without its explanation; a line in a cell is "¦"."""
    rows = [[head.name for head in table.heads], *table.rows]
    lines = [f"| {' | '.join(str(cell).replace('|', '¦') for cell in row)} |" for row in rows]
    return "\n".join([lines[0], f"|{'---|' * len(table.heads)}", *lines[1:]])


def to_text(table: Table, indent: str = "") -> str:
    """Return a table as lines of aligned columns, with its explanation below."""
    names = [[head.name for head in table.heads]] if any(head.name for head in table.heads) else []
    rows = [*names, *([" ".join(str(cell).split("\n")) for cell in row] for row in table.rows)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        pairs = zip(row, widths, table.heads, strict=True)
        cells = (text.ljust(width) if head.left else text.rjust(width) for text, width, head in pairs)
        lines.append((indent + "  ".join(cells)).rstrip())
    return "\n".join([*lines, *([indent + table.explanation] if table.explanation else [])])


def _class(*names: str) -> str:
    known = " ".join(filter(None, names))
    return f' class="{known}"' if known else ""


def _to_html_cell(cell: TableCell | str, head: TableColumn, place: int) -> str:
    known = TableCell(cell) if isinstance(cell, str) else cell
    detail = f" <small>{escape(known.detail)}</small>" if known.detail else ""
    tag, scope = ("th", ' scope="row"') if place == 0 else ("td", "")
    return f"<{tag}{scope}{_class('' if head.left else 'num', known.style)}>{escape(known.text)}{detail}</{tag}>"


def _style_text(cell: TableCell | str) -> Text:
    from rich.text import Text

    if isinstance(cell, str):
        return Text(cell)
    text = Text(cell.text, _TERMINAL_STYLES.get(cell.style, cell.style))
    return text.append(f"\n{cell.detail}", "dim") if cell.detail else text


def _break_names(table: Table) -> list[str]:
    """Return the names of the columns; one of numbers is broken into lines of their width, but in no word."""
    names = []
    for place, head in enumerate(table.heads):
        width = max((len(text) for text in [*head.name.split(" "), *_list_lines(table, place)]), default=1)
        names.append(head.name if head.left else fill(head.name, max(1, width)))
    return names


def _list_lines(table: Table, place: int) -> list[str]:
    cells = (row[place] for row in table.rows)
    texts = ([cell.text, cell.detail] if isinstance(cell, TableCell) else [cell] for cell in cells)
    return [line for parts in texts for text in parts for line in text.split("\n")]


def _measure_width(table: Table, gap: int = 1) -> int:
    """Return the characters of a line in which no column that must not wrap is cut."""
    from rich.cells import cell_len

    total = -1
    for place, (head, name) in enumerate(zip(table.heads, _break_names(table), strict=True)):
        longest = max(map(cell_len, [*name.split("\n"), *_list_lines(table, place)]))
        total += 1 + gap + (min(longest, _LEAST_WORDS) if head.wraps else longest)
    return total
