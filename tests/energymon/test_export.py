import csv
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from energymon import START, OptionError, Reading, SqliteStore, WindowError
from energymon.analysis.tuples import stored_tuples
from energymon.cli.export import READING_COLUMNS, TUPLE_COLUMNS, export

REPO = Path(__file__).parents[2]
MS = 1_000_000
TICK = 100 * MS
LAST = 12_000
"""Ticks: more than are in memory at a time."""


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("store") / "energy.sqlite"
    rows = []
    for k in range(LAST + 1):
        late = (k * 37) % 900 * 1000
        flags = START if k == 0 else ""
        rows.append(Reading(k * TICK, k * TICK + late, "a b", "package-0", "cpu", "rapl-perf", 5.0 * k, flags))
        # The board's own time is before the tick.
        rows.append(Reading(k * TICK, k * TICK - 30 * MS, "a b", "gpu-0", "gpu", "nvml-counter", 7.0 * k, flags))
    with SqliteStore.create(path) as store:
        store.begin_session("a b", 0, TICK, {})
        store.append(rows)
        store.begin_session("c", 0, TICK, {})
        store.append([Reading(k * TICK, k * TICK, "c", "cpu", "cpu", "estimate", 2.0 * k) for k in range(50)])
    return path


@pytest.fixture
def store(path):
    with SqliteStore.open(path) as store:
        yield store


def test_parquet_holds_every_reading_once_with_the_columns_described(store, tmp_path):
    out = tmp_path / "energy.parquet"
    count = export(store, out, "parquet")
    table = pq.read_table(out)
    assert table.num_rows == count == 2 * (LAST + 1) + 50
    assert table.column_names == list(READING_COLUMNS)
    assert table.schema.field("joules").metadata[b"description"] == b"cumulative, unwrapped, J"
    keys = list(zip(*(table[name].to_pylist() for name in ("tick_ns", "node", "device")), strict=True))
    assert len(set(keys)) == count
    found = {tuple(row.values()) for row in table.to_pylist() if row["tick_ns"] == 77 * TICK}
    assert found == {tuple(r) for r in store.readings(77 * TICK, 77 * TICK, "a b") if r.tick_ns == 77 * TICK}


def test_tuples_are_written_with_unknown_cells_empty(store, tmp_path):
    out = tmp_path / "energy.csv"
    count = export(store, out, "csv", "tuples")
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == list(TUPLE_COLUMNS)
    direct = list(stored_tuples(store, 0, 2**63 - 1))
    assert len(rows) == count == len(direct)
    assert sum(float(r["cpu_energy"]) for r in rows if r["node"] == "a b") == pytest.approx(
        sum(t.cpu_energy for t in direct if t.node == "a b"), rel=1e-12
    )
    (estimate,) = [r for r in rows if r["node"] == "c" and r["t_ns"] == str(TICK)]
    assert (estimate["cpu_energy"], estimate["cpu_energy_estimate"], estimate["gpu_energy"]) == ("", "2.0", "")
    assert estimate["cpu_source"] == "estimate"


def test_a_span_and_a_node_narrow_what_is_written(store, tmp_path):
    out = tmp_path / "energy.csv"
    assert export(store, out, "csv", start_ns=10 * TICK, end_ns=13 * TICK, node="c") == 3
    assert [line.split(",")[0] for line in out.read_text().splitlines()[1:]] == [str(k * TICK) for k in (10, 11, 12)]
    with pytest.raises(WindowError, match="'x'"):
        export(store, out, "csv", node="x")
    with pytest.raises(WindowError):
        export(store, out, "csv", start_ns=2, end_ns=1)


@pytest.mark.parametrize(
    ("out", "format", "told"),
    [
        ("-", "parquet", "--format"),
        *(("FOLDER/no/such/out", format, "no/such/out") for format in ("parquet", "csv")),
        *((out, "csv", "expected the name of a file") for out in ("", ".", "/")),
        ("FOLDER", "csv", "is no regular file"),
        ("FOLDER/out.txt", None, "--format"),
    ],
)
def test_an_output_that_cannot_be_written_is_refused_with_its_name(store, tmp_path, out, format, told):
    with pytest.raises(OptionError, match=told):
        export(store, out.replace("FOLDER", str(tmp_path)), format)


def test_what_was_there_stays_until_the_new_file_is_whole(store, tmp_path, monkeypatch):
    out = tmp_path / "energy.csv"
    out.write_text("before")
    readings = SqliteStore.readings

    def break_off(self, start_ns, end_ns, node=None):
        if 0 < start_ns < end_ns:
            raise OSError(28, "No space left on device")
        return readings(self, start_ns, end_ns, node)

    monkeypatch.setattr(SqliteStore, "readings", break_off)
    with pytest.raises(OptionError, match="No space left"):
        export(store, out, "csv")
    assert out.read_text() == "before"
    assert list(tmp_path.iterdir()) == [out]
