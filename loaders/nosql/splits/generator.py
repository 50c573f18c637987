"""Makes splits of a dataset: by proportion or in folds, entities kept whole, classes in proportion or balanced."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

import numpy as np
import numpy.typing as npt

from loaders.errors import SplitError
from loaders.nosql.splits.assignment import Composition, assign
from loaders.nosql.splits.metadata import Column, Metadata

Balance = Literal["stratified", "equal", "none"]
BALANCES: Final = get_args(Balance)

LEFT_OUT: Final = -1
_SUM_TOLERANCE: Final = 1e-6
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_SHOWN: Final = 5
_Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Splits:
    """Splits of a dataset and how they were made."""

    metadata: Metadata
    shares: dict[str, float]
    """The share of the samples that was asked for, by split."""
    folds: int
    """How many of the splits are folds of a cross-validation: fold0, fold1, ...; 0 for none."""
    balance: Balance
    seed: int
    codes: _Ints
    """The split of each sample of the metadata, as its place in `shares`, or LEFT_OUT; shape (samples,)."""


def make_splits(
    metadata: Metadata,
    proportions: Mapping[str, float] | None = None,
    *,
    folds: int = 0,
    balance: Balance | None = None,
    seed: int = 0,
) -> Splits:
    """Split a dataset by its metadata; the same metadata, arguments and seed give the same splits.

    Args:
        metadata: the samples. All samples of an entity come into one split.
        proportions: the share of the samples of each split by its name. They sum to 1, and with folds to less than 1.
        folds: so many more splits of the same size, which share what `proportions` leave.
        balance: stratified: each split has the classes in the proportions of the dataset. equal: as many samples of
            each class in a split, and surplus samples are left out of it. none: classes are not looked at. The default
            is stratified where the metadata name a class, else none.
        seed: of the random order of entities of nearly the same size, and of the samples that are left out.

    Raises SplitError where the splits cannot be made as asked; the message names the split, class or entity.
    """
    balance = balance or ("none" if metadata.classes is None else "stratified")
    if balance not in BALANCES:
        raise SplitError(f"balance={balance}: expected one of {', '.join(BALANCES)}")
    if balance != "none" and metadata.classes is None:
        raise SplitError(f"balance={balance} needs the column of the classes: name it as the label, or take none")
    if seed < 0:
        raise SplitError(f"seed={seed}: expected 0 or more")
    shares = _share_out(proportions or {}, folds)
    entities = np.arange(len(metadata)) if metadata.entities is None else metadata.entities.codes
    classes = metadata.classes if balance != "none" else None
    composition = Composition.of(entities, np.zeros_like(entities) if classes is None else classes.codes)
    _check_sizes(metadata, composition, shares)
    if classes is not None:
        _check_classes(composition, classes, shares)
    codes = assign(composition, np.array(list(shares.values())), seed)[entities]
    _check_present(codes, classes, shares)
    if balance == "equal" and classes is not None:
        codes = _leave_out_surplus(codes, classes, len(shares), seed)
    return Splits(metadata, shares, folds, balance, seed, codes)


def _share_out(proportions: Mapping[str, float], folds: int) -> dict[str, float]:
    """Return the share of each split, and of each fold behind them."""
    for name, share in proportions.items():
        if not _NAME.fullmatch(name) or re.fullmatch(r"fold\d+", name):
            raise SplitError(
                f"split {name!r}: expected letters, digits, '_', '.' and '-', and none of the folds' names, fold0"
            )
        if not (math.isfinite(share) and 0 < share < 1):
            raise SplitError(f"split {name}={share:g}: expected a share of the samples between 0 and 1")
    total = math.fsum(proportions.values())
    if not folds:
        if len(proportions) < 2 or abs(total - 1) > _SUM_TOLERANCE:
            given = ", ".join(f"{name}={share:g}" for name, share in proportions.items()) or "none"
            raise SplitError(f"proportions {given} sum to {total:g}: expected two or more that sum to 1")
        return dict(proportions)
    if folds < 2:
        raise SplitError(f"folds={folds}: expected 2 or more")
    if total >= 1 - _SUM_TOLERANCE:
        raise SplitError(f"proportions sum to {total:g} and leave nothing for {folds} folds: expected less than 1")
    return {**proportions, **{f"fold{fold}": (1 - total) / folds for fold in range(folds)}}


def _check_sizes(metadata: Metadata, composition: Composition, shares: dict[str, float]) -> None:
    """Refuse fewer entities than splits, and an entity that is larger than each split."""
    kind = "samples" if metadata.entities is None else f"entities in column {metadata.entities.name!r}"
    if composition.entities < len(shares):
        raise SplitError(
            f"there are {composition.entities} {kind} for {len(shares)} splits: expected at least one for each; ask "
            "for fewer splits"
        )
    largest, (split, share) = int(composition.sizes.argmax()), max(shares.items(), key=lambda each: each[1])
    size, due = int(composition.sizes[largest]), share * len(metadata)
    if metadata.entities is not None and size > math.ceil(due):
        raise SplitError(
            f"{metadata.entities.name} {metadata.entities.values[largest]!r} has {size} of {len(metadata)} samples, "
            f"and the largest split, {split}, is due {due:.0f}: an entity is never divided; ask for fewer or larger "
            "splits, or leave this entity out of the metadata"
        )


def _check_classes(composition: Composition, classes: Column, shares: dict[str, float]) -> None:
    """Refuse classes that too few entities have for one of them to be in each split."""
    owners = composition.count_entities()
    scarce = np.flatnonzero(owners < len(shares))
    if len(scarce):
        named = ", ".join(f"{classes.values[place]!r} in {owners[place]}" for place in scarce[:_SHOWN])
        raise SplitError(
            f"{len(scarce)} classes of column {classes.name!r} are in fewer entities than there are splits, "
            f"{len(shares)}: {named}{', ...' if len(scarce) > _SHOWN else ''}; ask for fewer splits, leave these "
            "classes out of the metadata, or split without regard to classes (balance none)"
        )


def _check_present(codes: _Ints, classes: Column | None, shares: dict[str, float]) -> None:
    """Refuse an empty split, and one in which a class is missing."""
    names = list(shares)
    empty = np.flatnonzero(np.bincount(codes, minlength=len(shares)) == 0)
    if len(empty):
        raise SplitError(
            f"split {names[empty[0]]} is due {shares[names[empty[0]]] * len(codes):.1f} samples and would be empty: "
            "the entities that are left are too large for it; ask for a larger share"
        )
    if classes is None:
        return
    missing = np.argwhere(_count(codes, classes, len(shares)) == 0)
    if len(missing):
        named = ", ".join(f"{classes.values[c]!r} in {names[s]}" for s, c in missing[:_SHOWN])
        raise SplitError(
            f"classes of column {classes.name!r} would be missing: {named}{', ...' if len(missing) > _SHOWN else ''}; "
            "another seed may do, else ask for fewer or larger splits, or split without regard to classes "
            "(balance none)"
        )


def _leave_out_surplus(codes: _Ints, classes: Column, splits: int, seed: int) -> _Ints:
    """Leave samples out at random so that each split has as many of each class as of its scarcest one."""
    kept = _count(codes, classes, splits).min(axis=1)
    random = np.random.default_rng((seed, 1)).permutation(len(codes))
    cell = codes * len(classes.values) + classes.codes
    order = np.lexsort((random, cell))
    starts = np.searchsorted(cell[order], np.arange(splits * len(classes.values)))
    place = np.empty_like(codes)
    place[order] = np.arange(len(codes)) - starts[cell[order]]
    return np.where(place < kept[codes], codes, LEFT_OUT)


def _count(codes: _Ints, classes: Column, splits: int) -> _Ints:
    """Return the samples of each class in each split, shape (splits, classes)."""
    width = len(classes.values)
    kept = codes != LEFT_OUT
    counts = np.bincount(codes[kept] * width + classes.codes[kept], minlength=splits * width)
    return counts.reshape(splits, width).astype(np.int64)
