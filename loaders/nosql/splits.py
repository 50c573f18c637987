"""Training, validation and test splits of a dataset, made of its metadata (Cassandra-DALI paper, section 3.2).

Metadata is a DataFrame of one row a sample, indexed and sorted by the sample's id, with the columns `label` (the class)
and `entity` (the unit that is never divided, such as a patient) where these are named.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, get_args
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from loaders.errors import SplitError
from loaders.nosql.keys import Login
from loaders.nosql.schema import DatabaseTable, quote
from loaders.nosql.session import open_session

Balance = Literal["stratified", "equal", "none"]
SAMPLE_ID: Final = "sample_id"
"""The column of a database's metadata by which a loader knows the samples."""

_LEFT_OUT: Final = -1
_RARE: Final = 4
"""A class is rare if the smallest split is due fewer entities of it than this."""
_GOLDEN: Final = (math.sqrt(5) - 1) / 2
_SHOWN: Final = 5
_NAME: Final = re.compile(r"(?!fold\d+$)[A-Za-z0-9][A-Za-z0-9_.-]*")
_WHOLE: Final = r"0|-?[1-9][0-9]{0,17}"
"""Texts of a CSV file that are whole numbers: "7" is one, "007" is a text of its own."""
_KEY: Final = b"joulefeed.splits"
_Ints = npt.NDArray[np.int64]


def read_metadata(path: Path, *, id: str, label: str | None = None, entity: str | None = None) -> pd.DataFrame:
    """Read the named columns of a Parquet file, or of a CSV file with a line of names.

    Raises SplitError naming the file and a column that is missing or has an empty place, or an id that comes twice.
    """
    try:
        if path.suffix == ".csv":
            table = pd.read_csv(path, dtype=str)
            whole = [name for name in table if table[name].str.fullmatch(_WHOLE).all()]
            table = table.astype(dict.fromkeys(whole, "int64"))
        else:
            table = pq.read_table(path).to_pandas()
        return _take(table, id=id, label=label, entity=entity)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise SplitError(f"{path}: expected a Parquet file, or a CSV file with the suffix .csv: {error}") from error
    except SplitError as error:
        raise SplitError(f"{path}: {error}") from error


def fetch_metadata(
    table: DatabaseTable,
    *,
    id: str = SAMPLE_ID,
    label: str | None = None,
    entity: str | None = None,
    login: Login | None = None,
    timeout_s: float = 30.0,
) -> pd.DataFrame:
    """Read the named columns of the table of a dataset's metadata.

    Raises SplitError naming the table and a column that cannot be used, or where the dataset is not whole, and
    StreamError where the database cannot be reached.
    """
    with open_session(table.host, table.port, login, timeout_s=timeout_s) as session:
        keyspace = session.cluster.metadata.keyspaces.get(table.keyspace)
        described = keyspace and keyspace.tables.get(f"{table.name}_metadata")
        if not described or session.execute(session.prepare(table.find), [table.name]).one() is None:
            raise SplitError(f"{table.endpoint}: there is no whole dataset of this name; prepare it first")
        names = [name for name in dict.fromkeys((id, label, entity)) if name and name in described.columns]
        statement = f"SELECT {', '.join(map(quote, names))} FROM {table.metadata}"  # noqa: S608 - the names are checked
        rows = [tuple(row) for row in session.execute(statement)] if names else []
    try:
        return _take(pd.DataFrame(rows, columns=names), id=id, label=label, entity=entity)
    except SplitError as error:
        raise SplitError(f"{table.metadata}: {error}; its columns are {', '.join(described.columns)}") from error


def _take(table: pd.DataFrame, *, id: str, label: str | None, entity: str | None) -> pd.DataFrame:
    columns: dict[str, Any] = {}
    for role, name in (("id", id), ("label", label), ("entity", entity)):
        if name is None:
            continue
        if name not in table:
            raise SplitError(f"there is no column {name!r}")
        column = table[name]
        if column.isna().any():
            raise SplitError(f"column {name!r} is empty in {column.isna().sum()} rows: every sample needs a value")
        if pd.api.types.is_float_dtype(column):
            raise SplitError(f"column {name!r} is of the type {column.dtype}: expected whole numbers or text")
        columns[role] = column if pd.api.types.is_integer_dtype(column) else [_as_text(value) for value in column]
    found = pd.DataFrame(columns).set_index("id").sort_index()
    if not len(found):
        raise SplitError("the metadata has no rows: expected one for each sample")
    if (repeated := found.index[found.index.duplicated()]).size:
        raise SplitError(
            f"column {id!r} has {str(repeated[0])!r} more than once, {repeated.size} such rows in all: expected one "
            "row for each sample"
        )
    return found


def _as_text(value: Any) -> str:
    return str(UUID(bytes=value)) if isinstance(value, bytes) and len(value) == 16 else str(value)


def make_splits(
    metadata: pd.DataFrame,
    proportions: Mapping[str, float] | None = None,
    *,
    folds: int = 0,
    balance: Balance | None = None,
    seed: int = 0,
) -> pd.Series[str]:
    """Return the split of each sample by its id, None for those left out; equal for equal metadata, arguments and seed.

    Args:
        metadata: The samples. All samples of an entity come into one split.
        proportions: The share of the samples of each split by its name. They sum to 1, and with folds to less than 1
            (default: none).
        folds: So many more splits of the same size, fold0, fold1, …, which share what `proportions` leave (default: 0).
        balance: stratified: each split has the classes in the proportions of the dataset. equal: as many samples of
            each class in a split, the surplus left out. none: classes are not looked at (default: stratified where
            the metadata name a class, else none).
        seed: Of the random choices (default: 0).

    Raises SplitError where the splits cannot be made as asked; the message names the split, class or entity.
    """
    balance = balance or ("stratified" if "label" in metadata else "none")
    if balance not in get_args(Balance):
        raise SplitError(f"balance={balance}: expected one of {', '.join(get_args(Balance))}")
    if balance != "none" and "label" not in metadata:
        raise SplitError(f"balance={balance} needs the column of the classes: name it as the label, or take none")
    if seed < 0:
        raise SplitError(f"seed={seed}: expected 0 or more")
    shares = _share_out(proportions or {}, folds)
    by_class = balance != "none"
    classes, labels = pd.factorize(metadata["label"] if by_class else np.zeros(len(metadata), int), sort=True)
    entities, owners = pd.factorize(metadata.get("entity", metadata.index), sort=True)
    sizes = np.bincount(entities)
    if len(sizes) < len(shares):
        raise SplitError(f"there are {len(sizes)} entities for {len(shares)} splits; ask for fewer splits")
    largest, share = int(sizes.argmax()), max(shares.values())
    if sizes[largest] > math.ceil(share * len(metadata)):
        raise SplitError(
            f"entity {owners[largest]} has {sizes[largest]} of {len(metadata)} samples, and the largest split is due "
            f"{share * len(metadata):.0f}: an entity is never divided; ask for fewer or larger splits"
        )
    codes = _Assigner(entities, classes, np.array(list(shares.values())), seed).splits[entities]
    counts = np.bincount(codes * len(labels) + classes, minlength=len(shares) * len(labels))
    counts = counts.reshape(len(shares), len(labels))
    if (missing := np.argwhere(counts == 0)).size:
        named = ", ".join(f"{labels[c]} in {list(shares)[s]}" for s, c in missing[:_SHOWN].tolist())
        raise SplitError(
            (f"classes would be missing: {named}; another seed may do, else" if by_class else f"no samples: {named};")
            + " ask for fewer or larger splits"
            + (", or split without regard to classes (balance none)" if by_class else "")
        )
    if balance == "equal":
        codes = _leave_out_surplus(codes, classes, counts.min(axis=1), seed)
    names = np.array([*shares, None], object)
    return pd.Series(names[codes], metadata.index, name="split")


def _share_out(proportions: Mapping[str, float], folds: int) -> dict[str, float]:
    for name, share in proportions.items():
        if not _NAME.fullmatch(name):
            raise SplitError(f"split {name!r}: expected letters, digits, '_', '.' and '-', and no fold's name, fold0")
        if not (math.isfinite(share) and 0 < share < 1):
            raise SplitError(f"split {name}={share:g}: expected a share of the samples between 0 and 1")
    total = math.fsum(proportions.values())
    if folds < 0 or folds == 1:
        raise SplitError(f"folds={folds}: expected 2 or more, or 0 for none")
    if folds and total > 1 - 1e-6:
        raise SplitError(f"proportions sum to {total:g} and leave nothing for {folds} folds: expected less than 1")
    if not folds and (len(proportions) < 2 or abs(total - 1) > 1e-6):
        raise SplitError(f"proportions sum to {total:g}: expected two or more splits that sum to 1")
    return {**proportions, **{f"fold{fold}": (1 - total) / folds for fold in range(folds)}}


class _Assigner:
    """Assigns each entity to one split, so that sizes and class counts come near to their shares.

    No split differs from its share of all samples by more than the largest entity has, where entities have more than
    one sample: an entity comes into a split that has room for all of it, and where none has, into that with most room.
    """

    def __init__(self, entities: _Ints, classes: _Ints, shares: npt.NDArray[np.float64], seed: int) -> None:
        width = int(classes.max()) + 1
        pairs, self._counts = np.unique(entities * width + classes, return_counts=True)
        rows, self._classes = np.divmod(pairs, width)
        self._sizes = np.bincount(entities)
        self._starts = np.searchsorted(rows, np.arange(len(self._sizes) + 1))
        self._shares = shares
        self._random = np.random.default_rng(seed).permutation(len(self._sizes))
        # One more column than classes: all samples.
        self._totals = np.append(np.bincount(classes, minlength=width), len(classes)).astype(float)
        self._due = shares[:, None] * self._totals
        self._filled = np.zeros_like(self._due)
        self.splits: _Ints = np.full(len(self._sizes), _LEFT_OUT, np.int64)
        owners = np.bincount(self._classes, minlength=width)
        rare = owners * shares.min() < _RARE
        self._assign_singles(rare)
        self._assign_rare(rows, owners, rare)
        left = np.flatnonzero(self.splits == _LEFT_OUT)
        # Large entities first, in random order where they have nearly the same size.
        for entity in left[np.lexsort((self._random[left], -np.frexp(self._sizes[left].astype(float))[1]))].tolist():
            self._put(entity, self._choose(entity))

    def _assign_singles(self, rare: npt.NDArray[np.bool_]) -> None:
        """Assign entities of one sample at once: a low-discrepancy sequence over their order by class."""
        if self._sizes.max() > 1:
            return
        singles = np.flatnonzero(~rare[self._classes])
        singles = singles[np.lexsort((self._random[singles], self._classes[singles]))]
        at = (np.arange(1, len(singles) + 1) * _GOLDEN) % 1
        self.splits[singles] = np.searchsorted(np.cumsum(self._shares)[:-1], at, side="right")
        np.add.at(self._filled, (self.splits[singles], self._classes[singles]), 1)
        self._filled[:, -1] = self._filled[:, :-1].sum(axis=1)

    def _assign_rare(self, rows: _Ints, owners: _Ints, rare: npt.NDArray[np.bool_]) -> None:
        """Give each split, the smallest first, one entity of each class that it would be likely to miss."""
        order = np.lexsort((self._random[rows], self._sizes[rows], self._classes))
        starts = np.searchsorted(self._classes[order], np.arange(len(owners) + 1))
        for label in sorted(np.flatnonzero(rare), key=lambda place: owners[place]):
            candidates = rows[order[starts[label] : starts[label + 1]]]
            for split in np.argsort(self._shares, kind="stable").tolist():
                left = candidates[self.splits[candidates] == _LEFT_OUT]
                room = self._due[split, -1] - self._filled[split, -1]
                if not self._filled[split, label] and len(left) and self._sizes[left[0]] <= room:
                    self._put(int(left[0]), split)

    def _choose(self, entity: int) -> int:
        """Return the split with room in which the entity's classes are filled least, relative to its share of them."""
        row, size = slice(self._starts[entity], self._starts[entity + 1]), self._sizes[entity]
        room = self._due[:, -1] - self._filled[:, -1]
        if room.max() < size:
            return int(room.argmax())
        classes = np.append(self._classes[row], -1)
        counts = np.append(self._counts[row], size)
        level = (self._filled[:, classes] + counts) / self._due[:, classes]
        return int(np.where(room >= size, level @ (counts / self._totals[classes]), np.inf).argmin())

    def _put(self, entity: int, split: int) -> None:
        row = slice(self._starts[entity], self._starts[entity + 1])
        self.splits[entity] = split
        self._filled[split, self._classes[row]] += self._counts[row]
        self._filled[split, -1] += self._sizes[entity]


def _leave_out_surplus(codes: _Ints, classes: _Ints, kept: _Ints, seed: int) -> _Ints:
    """Leave samples out at random so that each split has `kept` samples of each class."""
    random = np.random.default_rng((seed, 1)).permutation(len(codes))
    place = pd.Series(random).groupby([codes, classes]).rank(method="first").to_numpy() - 1
    return np.where(place < kept[codes], codes, _LEFT_OUT)


def describe(splits: pd.Series[str], metadata: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """Return the samples, entities and samples by class of every split, and of the samples that were left out."""
    report: dict[str, dict[str, Any]] = {}
    for name, part in metadata.groupby(splits.fillna("left out")):
        report[str(name)] = {"samples": len(part)}
        if "entity" in part:
            report[str(name)]["entities"] = part["entity"].nunique()
        if "label" in part:
            report[str(name)]["classes"] = {str(label): int(n) for label, n in part["label"].value_counts().items()}
    return report


def save_splits(splits: pd.Series[str], path: Path, report: Mapping[str, Any]) -> None:
    """Write id and split of every sample as Parquet, with the report beside them; raises SplitError."""
    table = pa.table({"id": pa.array(splits.index), "split": pa.array(splits, pa.string())})
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{path.name}.partial")
        pq.write_table(table.replace_schema_metadata({_KEY: json.dumps(report)}), partial)
        partial.replace(path)
    except OSError as error:
        raise SplitError(f"{error.filename or path}: {error.strerror}: the splits cannot be stored there") from error


def load_split(path: Path, name: str) -> npt.NDArray[Any]:
    """Return the ids of a stored split, sorted: dtype int64, or object with texts; shape (samples of the split,).

    Of folds, `fold0` and `fold0/validation` are the ids of that fold, `fold0/train` those of all other folds.

    Raises SplitError when there is no such split, or the file is missing or no file of splits.
    """
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise SplitError(f"{path}: {error}: make it with `python -m loaders.nosql splits`") from error
    if _KEY not in (table.schema.metadata or {}):
        raise SplitError(f"{path} is no file of splits: make it with `python -m loaders.nosql splits`")
    names = set(table["split"].unique().to_pylist()) - {None}
    fold, _, part = name.partition("/")
    wanted = {name, fold} & names if part in ("", "validation") else set()
    if part == "train" and fold in names and re.fullmatch(r"fold\d+", fold):
        wanted = {one for one in names if re.fullmatch(r"fold\d+", one)} - {fold}
    if not wanted or (part and not re.fullmatch(r"fold\d+", fold)):
        raise SplitError(f"{path} has no split {name!r}; it has {', '.join(sorted(names))}; of folds fold0/train, …")
    frame = table.to_pandas()
    return np.asarray(frame["id"][frame["split"].isin(wanted)])
