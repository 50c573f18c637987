"""Stores splits: a JSON file with the report, and beside it a Parquet file with the split of every id."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from loaders.errors import SplitError
from loaders.nosql.splits.generator import LEFT_OUT, Splits
from loaders.nosql.splits.report import Report, describe

_FORMAT: Final = "splits-1"
_HOW: Final = "make it with `python -m loaders.nosql splits`"


def save_splits(splits: Splits, path: Path, *, source: str = "") -> Report:
    """Write the report to `path`, NAME.json, and the ids to NAME.parquet beside it; return the report.

    The Parquet file has the columns id and split, sorted by id; the split of samples that were left out is null. The
    JSON file is written last and has the Parquet file's SHA-256. `source` says where the metadata came from.

    Raises SplitError where the files cannot be written or the name has no suffix .json.
    """
    _check_suffix(path)
    names = pa.array([*splits.shares])
    codes = pa.array(splits.codes, mask=splits.codes == LEFT_OUT)
    table = pa.table({"id": splits.metadata.ids, "split": names.take(codes)})
    ids = path.with_suffix(".parquet")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = ids.with_name(f"{ids.name}.partial")
        pyarrow.parquet.write_table(table, partial)
        report = {"format": _FORMAT, "ids": ids.name, "ids_sha256": _hash(partial), "source": source}
        report |= describe(splits)
        text = path.with_name(f"{path.name}.partial")
        text.write_text(json.dumps(report, indent=1) + "\n")
        partial.replace(ids)
        text.replace(path)
    except OSError as error:
        raise SplitError(f"{error.filename or path}: {error.strerror}: the splits cannot be stored there") from error
    return report


def load_report(path: Path) -> Report:
    """Return the report of stored splits; raises SplitError when it is missing, malformed or of other ids."""
    _check_suffix(path)
    try:
        report: Any = json.loads(path.read_text())
        if not isinstance(report, dict) or report.get("format") != _FORMAT:
            raise SplitError(f"{path} is no file of splits of the format {_FORMAT}: {_HOW}")
        found = _hash(path.with_name(report["ids"]))
    except OSError as error:
        raise SplitError(f"{error.filename}: {error.strerror}: expected stored splits; {_HOW}") from error
    except (ValueError, KeyError) as error:
        raise SplitError(f"{path} is damaged: {error!r}: {_HOW}") from error
    if found != report["ids_sha256"]:
        raise SplitError(
            f"{path.with_name(report['ids'])} has other ids than {path.name} describes: copy both files together, or "
            "make them again"
        )
    return report


def load_split(path: Path, name: str) -> npt.NDArray[Any]:
    """Return the ids of a stored split, sorted: dtype int64, or object with texts; shape (samples of the split,).

    Of folds, `fold0` and `fold0/validation` are the ids of that fold, `fold0/train` those of all other folds.

    Raises SplitError when there is no such split, or the files are missing, malformed or do not belong together.
    """
    report = load_report(path)
    wanted = _members(report, name)
    if not wanted:
        known = ", ".join(report["splits"]) + (", fold0/train, fold0/validation, ..." if report["folds"] else "")
        raise SplitError(f"{path} has no split {name!r}; it has {known}")
    table = pyarrow.parquet.read_table(path.with_name(report["ids"]))
    ids = table["id"].filter(pc.is_in(table["split"], pa.array(wanted))).combine_chunks()
    return np.asarray(ids.to_numpy(zero_copy_only=False))


def _members(report: Report, name: str) -> list[str]:
    """Return the stored splits of which a split consists; none for an unknown one."""
    fold = re.fullmatch(r"(fold\d+)/(train|validation)", name)
    if fold is None or not report["folds"] or fold[1] not in report["splits"]:
        return [name] if name in report["splits"] else []
    if fold[2] == "validation":
        return [fold[1]]
    return [f"fold{each}" for each in range(report["folds"]) if f"fold{each}" != fold[1]]


def _check_suffix(path: Path) -> None:
    if path.suffix != ".json":
        raise SplitError(f"{path}: expected a file NAME.json; its ids are in NAME.parquet beside it")


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
