"""Metadata from files, and splits that are stored and read again."""

from __future__ import annotations

import argparse
import json
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from loaders.errors import LoaderError, SplitError
from loaders.nosql.splits import load_report, load_split, read_metadata
from loaders.nosql.splits.commands import add_commands

TABLE = pa.table(
    {
        "id": range(1000),
        "patient": [f"{k // 4:03d}" for k in range(1000)],
        "label": [k % 3 for k in range(1000)],
        "age": [k / 2 for k in range(1000)],
    }
)


def splits(*arguments: Any) -> None:
    parser = argparse.ArgumentParser()
    add_commands(parser.add_subparsers())
    known = parser.parse_args(["splits", *map(str, arguments)])
    known.run(known)


@pytest.fixture
def metadata(tmp_path: Path) -> Path:
    pyarrow.parquet.write_table(TABLE, tmp_path / "metadata.parquet")
    return tmp_path / "metadata.parquet"


def test_the_command_stores_splits_that_a_loader_reads(
    metadata: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "splits.json"
    asked = ("--label", "label", "--entity", "patient", "--proportions", "train=0.8,validation=0.1,test=0.1")
    splits("--metadata", metadata, *asked, "--out", out)
    ids = [load_split(out, name) for name in ("train", "validation", "test")]
    assert [len(each) for each in ids] == [800, 100, 100]
    assert sorted(np.concatenate(ids).tolist()) == list(range(1000))
    assert len(set(ids[0] // 4) & set(ids[1] // 4)) == 0
    report = load_report(out)
    assert report["source"] == "metadata.parquet" and report["splits"]["train"]["entities"] == 200
    assert report["metadata"]["sha256"] == read_metadata(metadata, id="id", label="label", entity="patient").sha256
    shown = capsys.readouterr().out
    assert "1000 samples of 250 values of patient, balance stratified, seed 0" in shown and "80.00%" in shown
    assert sorted(path.name for path in out.parent.iterdir()) == ["splits.json", "splits.parquet"]


def test_folds_are_read_as_training_and_validation(metadata: Path, tmp_path: Path) -> None:
    out = tmp_path / "folds.json"
    splits("--metadata", metadata, "--entity", "patient", "--folds", 4, "--proportions", "test=0.2", "--out", out)
    train, validation = load_split(out, "fold2/train"), load_split(out, "fold2/validation")
    assert validation.tolist() == load_split(out, "fold2").tolist()
    assert len(train) == 600 and not set(train) & set(validation) and not set(train) & set(load_split(out, "test"))
    with pytest.raises(SplitError, match=r"has no split 'fold4/train'; it has test, fold0"):
        load_split(out, "fold4/train")


def test_csv_keeps_texts_that_look_like_numbers_and_agrees_with_parquet(metadata: Path, tmp_path: Path) -> None:
    # "007" and "7" are two patients; ids and labels are numbers as in the Parquet file.
    pyarrow.csv.write_csv(TABLE, tmp_path / "metadata.csv")
    columns = {"id": "id", "label": "label", "entity": "patient"}
    assert read_metadata(tmp_path / "metadata.csv", **columns).sha256 == read_metadata(metadata, **columns).sha256
    (tmp_path / "two.csv").write_text("id,patient\na,007\nb,7\n")
    entities = read_metadata(tmp_path / "two.csv", id="id", entity="patient").entities
    assert entities is not None and entities.values == ["007", "7"]


def test_uuids_are_read_as_text(tmp_path: Path) -> None:
    known = sorted(uuid.UUID(int=k) for k in range(10, 20))
    pyarrow.parquet.write_table(
        pa.table({"id": pa.array([each.bytes for each in known], pa.binary(16))}), tmp_path / "metadata.parquet"
    )
    out = tmp_path / "splits.json"
    splits("--metadata", tmp_path / "metadata.parquet", "--proportions", "a=0.5,b=0.5", "--out", out)
    found = [*load_split(out, "a"), *load_split(out, "b")]
    assert sorted(map(uuid.UUID, found)) == known


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--entity", "hospital"), "there is no column 'hospital'; its columns are id, patient, label, age"),
        (("--label", "age"), "column 'age' is of the type double: expected whole numbers or text"),
        (("--id", "patient"), "column 'patient' has '000' more than once, 750 such rows"),
        (("--balance", "equal"), "balance=equal needs the column of the classes"),
        (("--metadata", "/nowhere.parquet"), "/nowhere.parquet: "),
    ],
)
def test_what_the_metadata_have_not_is_refused(
    metadata: Path, tmp_path: Path, arguments: tuple[str, ...], expected: str
) -> None:
    with pytest.raises(LoaderError) as raised:
        splits("--metadata", metadata, "--proportions", "a=0.5,b=0.5", "--out", tmp_path / "s.json", *arguments)
    assert expected in str(raised.value)


def test_an_empty_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "metadata.csv").write_text("id,patient\na,1\nb,\n")
    with pytest.raises(SplitError, match=r"column 'patient' is empty in 1 rows"):
        read_metadata(tmp_path / "metadata.csv", id="id", entity="patient")


def test_stored_splits_that_do_not_belong_together_are_refused(metadata: Path, tmp_path: Path) -> None:
    out = tmp_path / "splits.json"
    splits("--metadata", metadata, "--proportions", "a=0.5,b=0.5", "--out", out)
    whole = out.with_suffix(".parquet").read_bytes()
    out.with_suffix(".parquet").write_bytes(whole[:-1])
    with pytest.raises(SplitError, match=r"has other ids than splits\.json describes"):
        load_split(out, "a")
    out.with_suffix(".parquet").unlink()
    with pytest.raises(SplitError, match=r"splits\.parquet: No such file"):
        load_split(out, "a")
    out.write_text(json.dumps({"format": "other"}))
    with pytest.raises(SplitError, match="is no file of splits"):
        load_split(out, "a")
    out.write_text("{")
    with pytest.raises(SplitError, match="is damaged"):
        load_split(out, "a")
    with pytest.raises(SplitError, match="would replace the metadata"):
        splits("--metadata", metadata, "--proportions", "a=0.5,b=0.5", "--out", metadata.with_suffix(".json"))
