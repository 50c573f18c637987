"""The ledger keeps every entry and tolerates a torn last line."""

from harness.results.ledger import Ledger


def test_entries_come_back_in_order(tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.append("started", "a")
    ledger.append("failed", "a", "the reason")
    assert [(e.event, e.cell_id, e.message) for e in ledger.read_entries()] == [
        ("started", "a", ""),
        ("failed", "a", "the reason"),
    ]


def test_a_torn_last_line_is_skipped_and_the_next_entry_is_whole(tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.append("started", "a")
    with ledger.path.open("a") as file:
        file.write('{"t_utc": "2026-')
    ledger.append("done", "a")
    assert [e.event for e in ledger.read_entries()] == ["started", "done"]


def test_no_ledger_has_no_entries(tmp_path):
    assert Ledger(tmp_path / "absent").read_entries() == []
