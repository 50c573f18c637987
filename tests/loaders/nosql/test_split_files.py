"""Metadata from files, and splits that are stored and read again."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from loaders.errors import SplitError
from loaders.nosql.__main__ import main
from loaders.nosql.splits import load_split, make_splits, read_metadata

TABLE = pa.table(
    {
        "id": range(1000),
        "patient": [f"{k // 4:03d}" for k in range(1000)],
        "label": [k % 3 for k in range(1000)],
        "age": [k / 2 for k in range(1000)],
    }
)


def splits(*arguments: Any) -> int:
    return main(["splits", *map(str, arguments)])


@pytest.fixture
def metadata(tmp_path: Path) -> Path:
    pyarrow.parquet.write_table(TABLE, tmp_path / "metadata.parquet")
    return tmp_path / "metadata.parquet"


def test_the_command_stores_splits_that_a_loader_reads(
    metadata: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "splits.parquet"
    asked = ("--label", "label", "--entity", "patient", "--proportions", "train=0.8,validation=0.1,test=0.1")
    assert splits("--metadata", metadata, *asked, "--out", out) == 0
    ids = [load_split(out, name) for name in ("train", "validation", "test")]
    assert [len(each) for each in ids] == [800, 100, 100]
    assert sorted(np.concatenate(ids).tolist()) == list(range(1000))
    assert len(set(ids[0] // 4) & set(ids[1] // 4)) == 0
    assert "train: 800 samples, 200 entities; classes: 0 2" in capsys.readouterr().out
    assert [path.name for path in out.parent.iterdir()] == ["splits.parquet"]


def test_folds_are_read_as_training_and_validation(metadata: Path, tmp_path: Path) -> None:
    out = tmp_path / "folds.parquet"
    splits("--metadata", metadata, "--entity", "patient", "--folds", 4, "--proportions", "test=0.2", "--out", out)
    train, validation = load_split(out, "fold2/train"), load_split(out, "fold2/validation")
    assert validation.tolist() == load_split(out, "fold2").tolist()
    assert len(train) == 600 and not set(train) & set(validation) and not set(train) & set(load_split(out, "test"))
    for name in ("fold4/train", "test/train", "fold2/other"):
        with pytest.raises(SplitError, match=rf"has no split '{name}'; it has fold0"):
            load_split(out, name)


def test_csv_keeps_texts_that_look_like_numbers_and_agrees_with_parquet(metadata: Path, tmp_path: Path) -> None:
    # "007" and "7" are two patients; ids and labels are numbers as in the Parquet file.
    pyarrow.csv.write_csv(TABLE, tmp_path / "metadata.csv")
    columns = {"id": "id", "label": "label", "entity": "patient"}
    read = [read_metadata(path, **columns) for path in (tmp_path / "metadata.csv", metadata)]
    one, other = (make_splits(each, {"a": 0.5, "b": 0.5}) for each in read)
    assert one.equals(other) and one.index.dtype == "int64"
    (tmp_path / "two.csv").write_text("id,patient\na,007\nb,7\n")
    assert read_metadata(tmp_path / "two.csv", id="id", entity="patient")["entity"].tolist() == ["007", "7"]


def test_uuids_are_read_as_text(tmp_path: Path) -> None:
    known = sorted(uuid.UUID(int=k) for k in range(10, 20))
    pyarrow.parquet.write_table(
        pa.table({"id": pa.array([each.bytes for each in known], pa.binary(16))}), tmp_path / "metadata.parquet"
    )
    out = tmp_path / "splits.parquet"
    splits("--metadata", tmp_path / "metadata.parquet", "--proportions", "a=0.5,b=0.5", "--out", out)
    assert sorted(map(uuid.UUID, [*load_split(out, "a"), *load_split(out, "b")])) == known


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--entity", "hospital"), "metadata.parquet: there is no column 'hospital'"),
        (("--label", "age"), "column 'age' is of the type float64: expected whole numbers or text"),
        (("--id", "patient"), "column 'patient' has '000' more than once, 750 such rows"),
        (("--balance", "equal"), "balance=equal needs the column of the classes"),
        (("--metadata", "/nowhere.parquet"), "/nowhere.parquet: "),
    ],
)
def test_what_the_metadata_have_not_is_refused(
    metadata: Path, tmp_path: Path, arguments: tuple[str, ...], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("--metadata", metadata, "--proportions", "a=0.5,b=0.5", "--out", tmp_path / "s.parquet")
    assert splits(*asked, *arguments) == 2
    assert expected in capsys.readouterr().err


def test_an_empty_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "metadata.csv").write_text("id,patient\na,1\nb,\n")
    with pytest.raises(SplitError, match=r"column 'patient' is empty in 1 rows"):
        read_metadata(tmp_path / "metadata.csv", id="id", entity="patient")


def test_a_file_of_something_else_is_no_file_of_splits(
    metadata: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SplitError, match="is no file of splits"):
        load_split(metadata, "a")
    (tmp_path / "damaged.parquet").write_bytes(metadata.read_bytes()[:-1])
    for path in (tmp_path / "damaged.parquet", tmp_path / "gone.parquet"):
        with pytest.raises(SplitError, match=f"{path}: "):
            load_split(path, "a")
    assert splits("--metadata", metadata, "--proportions", "a=0.5,b=0.5", "--out", metadata) == 2
    assert "would replace the metadata" in capsys.readouterr().err
