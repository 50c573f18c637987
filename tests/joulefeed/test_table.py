"""A table is written on a terminal, in HTML and as plain text, with the same content."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from joulefeed.table import Table, TableCell, TableColumn, print_table, to_html, to_text

TABLE = Table(
    (
        "loader",
        TableColumn("seconds per epoch", note="epoch: the median"),
        TableColumn("MB/s", optional=1, note="MB/s: of files"),
    ),
    (("PyTorch", TableCell("14.8", "bad", "13 to 16"), "3.9"), ("paper", "9", "")),
    notes=("one repeat",),
    dim=frozenset({1}),
)


def printed(table: Table, width: int) -> str:
    stream = io.StringIO()
    print_table(table, Console(file=stream, width=width))
    return stream.getvalue()


def test_every_way_to_write_a_table_has_its_heads_cells_and_details() -> None:
    for text in (printed(TABLE, 80), to_html(TABLE), to_text(TABLE)):
        for part in ("loader", "seconds", "MB/s", "PyTorch", "14.8", "13 to 16", "3.9", "paper", "9"):
            assert part in text


def test_the_explanation_is_one_sentence_of_the_notes_of_the_table_and_of_its_columns() -> None:
    assert TABLE.explanation == "One repeat; epoch: the median; MB/s: of files."
    assert Table(("a",), (("b",),)).explanation == ""


def test_numbers_stand_on_the_right_and_words_on_the_left() -> None:
    lines = to_text(
        Table(("loader", "s", TableColumn("source", left=True)), (("a", "10", "x"), ("bcd", "9", "yz")))
    ).split("\n")
    assert lines == ["loader   s  source", "a       10  x", "bcd      9  yz"]


def test_a_terminal_without_room_leaves_out_optional_columns_with_what_they_mean() -> None:
    narrow = printed(TABLE, 20)
    assert "MB/s" not in narrow
    assert "14.8" in narrow
    assert "MB/s" in printed(TABLE, 80)


def test_the_column_with_the_greatest_number_is_left_out_first() -> None:
    columns = (TableColumn("loader"), TableColumn("aaaaaaaa", optional=1), TableColumn("bbbbbbbb", optional=2))
    text = printed(Table(columns, (("x", "1", "2"),)), 20)
    assert "aaaaaaaa" in text
    assert "bbbbbbbb" not in text


@pytest.mark.parametrize("width", [1, 10])
def test_no_number_is_cut_on_the_narrowest_terminal(width: int) -> None:
    wide = Table(("loader", "epoch"), (("PyTorch", "123456789012345678901234567890"),))
    assert "123456789012345678901234567890" in printed(wide, width)


def test_a_head_wraps_to_the_width_of_the_numbers_below_it() -> None:
    head, *_ = printed(TABLE, 80).splitlines()
    assert "seconds" in head
    assert "seconds per" not in head


def test_a_table_without_heads_is_a_list() -> None:
    listed = Table(
        (TableColumn("", left=True), TableColumn("", left=True, wraps=True)), (("link", "word " * 20), ("cells", "two"))
    )
    lines = printed(listed, 40).splitlines()
    assert lines[0].startswith("link")
    assert lines[-1].split() == ["cells", "two"]
    assert all(len(line) <= 40 for line in lines)


def test_text_is_escaped_in_html_and_is_no_markup_on_a_terminal() -> None:
    table = Table(("a",), (("<b> & [red]",),))
    assert "&lt;b&gt; &amp; [red]" in to_html(table)
    assert "<b> & [red]" in printed(table, 40)


def test_html_has_classes_of_styles_numbers_and_dim_rows() -> None:
    html = to_html(TABLE)
    assert '<td class="num bad">14.8 <small>13 to 16</small></td>' in html
    assert '<tr class="dim"><th scope="row">paper</th>' in html
