"""Rows are stored as Parquet and read back as they were; the CSV beside it is for people."""

import pytest

from harness.errors import ResultsError
from harness.results.epoch_row import EpochRow, compute_spread, make_schema, read_rows, write_rows

ROW = EpochRow(
    cell_id="pytorch-resnet50-local-r1-0",
    workload="resnet50",
    dataset="tiny",
    loader="pytorch",
    regime="local",
    rtt_ms=0.0,
    jitter_ms=0.0,
    loss_pct=0.0,
    repeat=1,
    epoch=1,
    start_utc="2025-11-20T13:00:00.000000+00:00",
    end_utc="2025-11-20T13:00:04.000000+00:00",
    duration_s=4.0,
    samples=6,
    bytes=3000,
    samples_per_s=1.5,
    mb_per_s=0.00075,
    stall_s=2.0,
    au=None,
    cpu_util=0.5,
    gpu_util=None,
    cpu_j=400.0,
    dram_j=None,
    gpu_j=120.0,
    total_j=520.0,
    energy_error_j=None,
    energy_source="cpu=rapl-powercap;gpu=estimate",
    valid="valid",
)


def test_rows_come_back_as_they_were_written(tmp_path):
    write_rows([ROW, ROW], EpochRow, tmp_path / "epochs.parquet", tmp_path / "epochs.csv")
    assert read_rows(tmp_path / "epochs.parquet", EpochRow) == (ROW, ROW)
    header, line, _ = (tmp_path / "epochs.csv").read_text().splitlines()
    assert header.split(",") == make_schema(EpochRow).names
    assert (
        "6,3000,1.5,0.00075,2.0,,,,0.5,,400.0,,120.0,520.0" + 21 * "," + "cpu=rapl-powercap;gpu=estimate,,,valid"
        in line
    )


def test_no_rows_keep_their_columns_and_no_file_is_no_row(tmp_path):
    write_rows([], EpochRow, tmp_path / "epochs.parquet", tmp_path / "epochs.csv")
    assert read_rows(tmp_path / "epochs.parquet", EpochRow) == ()
    assert (tmp_path / "epochs.csv").read_text().strip().split(",") == make_schema(EpochRow).names
    assert read_rows(tmp_path / "absent.parquet", EpochRow) == ()


def test_a_file_that_is_no_parquet_is_named(tmp_path):
    (tmp_path / "epochs.parquet").write_text("text")
    with pytest.raises(ResultsError, match=r"epochs\.parquet.*harness\.validate --write"):
        read_rows(tmp_path / "epochs.parquet", EpochRow)


def test_joules_and_sources_are_by_domain_and_an_unknown_domain_is_absent():
    assert ROW.joules == {"cpu": 400.0, "gpu": 120.0}
    assert ROW.sources == {"cpu": "rapl-powercap", "gpu": "estimate"}
    assert ROW.estimated == {"gpu"}


def test_the_spread_is_the_range_over_the_median_and_a_single_value_has_none():
    assert compute_spread([2.0, 4.0, 5.0]) == pytest.approx(0.75)
    assert compute_spread([4.0]) is None
    assert compute_spread([0.0, 0.0]) is None
