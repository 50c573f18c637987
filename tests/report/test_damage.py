"""Every file of a results folder, damaged in every way: one line that names it, an exit status and no traceback."""

from __future__ import annotations

import copy
import json
import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness.errors import BROKEN_FIGURE, DiskError, ResultsError
from harness.report.__main__ import main as report

pytestmark = pytest.mark.process  # they take seconds
STORED = ("config.yaml", "plan.json", "provenance.json", "checks.json", "cell.json", "link.json")
WHOLE: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda whole: whole[: len(whole) // 2],
    "binary": lambda _: bytes(range(256)),
    "empty": lambda _: b"",
    "of another type": lambda _: b'"text"',
}
VALUES: dict[str, Any] = {"text": "damaged", "a list": [["damaged"]], "keys": {"damaged": {}}, "NaN": math.nan}


@pytest.fixture
def folder(build) -> Path:
    """Return a small results folder that has every file, and no figure."""
    builder = build(repeats=1, loaders=("pytorch",), regimes=("wan_30ms",), placement="half")
    builder.config["figures"] = []
    written: Path = builder.write()
    return written


@pytest.fixture
def said(capsys):
    """Return a function that runs a command on a folder, sees one line about a file or none, and returns the status."""

    def run(command: Callable[[list[str]], int], folder: Path, name: str) -> int:
        status = command([str(folder)])
        text = capsys.readouterr().err
        assert status in {0, ResultsError.exit_status}
        if status:
            assert text.startswith("error: ")
            assert text.count("\n") == 1
            assert name in text
        return status

    return run


def find(folder: Path, name: str) -> Path:
    return next(folder.rglob(name))


@pytest.mark.parametrize("damage", WHOLE)
@pytest.mark.parametrize("name", [*STORED, "epochs.parquet", "ledger.jsonl"])
def test_a_file_that_is_damaged_as_a_whole_is_named(folder, said, name, damage):
    path = find(folder, name)
    path.write_bytes(WHOLE[damage](path.read_bytes()))
    # A killed run leaves the ledger without an end.
    whole_without = name == "ledger.jsonl" and damage != "binary"
    assert said(report, folder, name) == (0 if whole_without else ResultsError.exit_status)


@pytest.mark.parametrize("name", ["report.html", "claims.json"])
def test_a_file_that_cannot_be_written_is_named(folder, capsys, name):
    (folder / name).mkdir()
    assert report([str(folder)]) == DiskError.exit_status
    said = capsys.readouterr().err
    assert said.startswith(f"error: {folder / name}")
    assert said.count("\n") == 1


@pytest.mark.parametrize("damage", WHOLE)
def test_a_damaged_table_of_metrics_is_named(build_sweep, said, damage):
    folder = build_sweep(figures=("minato_table2",)).write()
    path = folder / "metrics.parquet"
    path.write_bytes(WHOLE[damage](path.read_bytes()))
    assert said(report, folder, path.name) == ResultsError.exit_status


@pytest.mark.parametrize("damage", WHOLE)
def test_a_damaged_table_that_a_figure_needs_is_named_in_its_place(build_sweep, damage, capsys):
    folder = build_sweep(figures=("minato_table2",)).write()
    path = find(folder, "batches.parquet")
    path.write_bytes(WHOLE[damage](path.read_bytes()))
    assert report([str(folder)]) == BROKEN_FIGURE
    assert capsys.readouterr().err.startswith(f"error: figure minato_table2 cannot be drawn: {path}: ")


@pytest.mark.parametrize("value", [None, 1.5, "soon"])
def test_a_column_of_epochs_with_another_type_is_named_with_its_file(folder, said, value):
    path = folder / "epochs.parquet"
    table = pq.read_table(path)
    place = table.column_names.index("samples")
    pq.write_table(table.set_column(place, "samples", pa.array([value] * len(table))), path)
    assert said(report, folder, "epochs.parquet") == ResultsError.exit_status


def damaged(whole: Any) -> Iterator[Any]:
    """Yield a JSON value with each of its keys, and of each of its first entries, missing or of another type."""
    if not isinstance(whole, dict | list):
        return
    for key in list(whole)[:12] if isinstance(whole, dict) else range(min(len(whole), 1)):
        changed = copy.copy(whole)
        del changed[key]
        yield changed
        for value in VALUES.values():
            changed = copy.copy(whole)
            changed[key] = value
            yield changed
        for inner in damaged(whole[key]):
            changed = copy.copy(whole)
            changed[key] = inner
            yield changed


@pytest.mark.parametrize("name", STORED)
def test_a_key_that_is_missing_or_of_another_type_is_named_with_its_file_or_unknown(folder, said, name):
    path = find(folder, name)
    every = list(damaged(json.loads(path.read_text())))
    for changed in random.Random(7).sample(every, 10):
        path.write_text(json.dumps(changed))
        said(report, folder, name)
