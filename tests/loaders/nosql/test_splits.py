"""Splits of generated metadata: entities whole, samples once, sizes, classes, determinism, and what is refused."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loaders.errors import SplitError
from loaders.nosql.splits import _take, make_splits

pytestmark = pytest.mark.process  # they take seconds
SHARES = st.sampled_from(
    [
        {"train": 0.8, "validation": 0.1, "test": 0.1},
        {"train": 0.6, "test": 0.4},
        {"a": 0.25, "b": 0.25, "c": 0.25, "d": 0.25},
        {"train": 0.93, "validation": 0.05, "test": 0.02},
    ]
)


@st.composite
def tables(draw: st.DrawFn, most_classes: int = 8) -> pa.Table:
    """Return metadata of 500 to 2000 patients, of whom few have many samples, with unequal and mixed classes."""
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    patients = draw(st.integers(500, 2000))
    tail = 1 + random.pareto(draw(st.sampled_from([0.8, 3])), patients) * draw(st.integers(0, 9))
    sizes = np.minimum(tail, patients // 10).astype(np.int64)
    classes = draw(st.integers(1, most_classes))
    usual = random.choice(classes, patients, p=weights(classes, draw(st.floats(0, 1.5))))
    owner = np.repeat(np.arange(patients), sizes)
    mixed = random.random(len(owner)) < draw(st.sampled_from([0, 0.2, 1]))
    label = np.where(mixed, random.integers(0, classes, len(owner)), usual[owner])
    ids = random.permutation(len(owner) * 3)[: len(owner)]
    names = [f"patient {k}" for k in owner]
    return pa.table({"id": ids, "label": [f"grade {k}" for k in label], "patient": names})


def weights(classes: int, skew: float) -> Any:
    each = (1 + np.arange(classes)) ** -skew
    return (each / each.sum() + 1 / classes) / 2


def read(table: pa.Table, **columns: str | None) -> pd.DataFrame:
    return _take(table.to_pandas(), id="id", **{"label": "label", "entity": "patient", **columns})


def _count(splits: pd.Series, shares: Iterable[str]) -> np.ndarray:
    return splits.value_counts().reindex([*shares], fill_value=0).to_numpy()


@settings(max_examples=40, deadline=None)
@given(tables(), SHARES, st.sampled_from(["none", "stratified"]), st.integers(0, 9))
def test_an_entity_is_in_one_split_and_every_sample_too_within_the_largest_entity(
    table: pa.Table, shares: dict[str, float], balance: Any, seed: int
) -> None:
    metadata = read(table)
    splits = make_splits(metadata, shares, balance=balance, seed=seed)
    assert splits.index.tolist() == sorted(table["id"].to_pylist()) and not splits.isna().any()
    assert (splits.groupby(metadata["entity"]).nunique() == 1).all()
    sizes = metadata["entity"].value_counts()
    # Of entities of one sample a low-discrepancy sequence takes its share, but for a few in each class.
    most = sizes.max() if sizes.max() > 1 else 3 * metadata["label"].nunique()
    assert np.abs(_count(splits, shares) - np.array([*shares.values()]) * len(table)).max() <= most


@settings(max_examples=40, deadline=None)
@given(tables(), st.integers(0, 9))
def test_stratified_splits_have_the_classes_of_the_dataset(table: pa.Table, seed: int) -> None:
    metadata = read(table)
    splits = make_splits(metadata, {"train": 0.7, "validation": 0.15, "test": 0.15}, seed=seed)
    largest = metadata["entity"].value_counts().max()
    counts = pd.crosstab(splits, metadata["label"])
    due = np.outer(counts.sum(axis=1), metadata["label"].value_counts(normalize=True)[counts.columns])
    # A class may be off by what one or two entities have of it.
    assert (counts.to_numpy() > 0).all() and np.abs(counts.to_numpy() - due).max() <= max(2 * largest, 4)


@settings(max_examples=40, deadline=None)
@given(tables(), SHARES, st.integers(0, 9), st.booleans())
def test_balanced_splits_have_equal_classes(table: pa.Table, shares: dict[str, float], seed: int, whole: bool) -> None:
    metadata = read(table) if whole else read(table, entity=None)
    splits = make_splits(metadata, shares, balance="equal", seed=seed)
    counts = pd.crosstab(splits, metadata["label"])
    assert counts.shape == (len(shares), metadata["label"].nunique()) and (counts.nunique(axis=1) == 1).all()
    if not whole:
        # Of the scarcest class each split takes its share, but for a few samples.
        scarcest = metadata["label"].value_counts().min()
        for name, share in shares.items():
            assert abs(counts.loc[name].iloc[0] - share * scarcest) <= 4


@settings(max_examples=30, deadline=None)
@given(tables(), st.integers(2, 10), st.integers(0, 9), st.sampled_from(["stratified", "equal", "none"]))
def test_the_order_of_rows_changes_nothing_and_the_seed_does(
    table: pa.Table, folds: int, seed: int, balance: Any
) -> None:
    splits = make_splits(read(table), folds=folds, balance=balance, seed=seed)
    shuffled = table.take(np.random.default_rng(seed).permutation(len(table)))
    assert make_splits(read(shuffled), folds=folds, balance=balance, seed=seed).equals(splits)
    assert not make_splits(read(table), folds=folds, balance=balance, seed=seed + 1).equals(splits)


@settings(max_examples=30, deadline=None)
@given(tables(), st.integers(2, 10))
def test_folds_are_of_one_size_beside_a_split_that_is_held_out(table: pa.Table, folds: int) -> None:
    metadata = read(table)
    splits = make_splits(metadata, {"test": 0.2}, folds=folds)
    names = ["test", *(f"fold{fold}" for fold in range(folds))]
    assert set(splits) == set(names)
    most = max(metadata["entity"].value_counts().max(), 3 * metadata["label"].nunique())
    counts = _count(splits, names)
    assert abs(counts[0] - 0.2 * len(table)) <= most and np.ptp(counts[1:]) <= 2 * most


def test_a_rare_class_is_in_every_split_where_entities_allow_it() -> None:
    # Three patients of 1000 have grade 9, and one each must come into train, validation and test.
    patient = np.repeat(np.arange(1000), 5)
    table = pa.table({"id": np.arange(5000), "patient": patient, "label": np.where(patient >= 997, 9, patient % 3)})
    for seed in range(20):
        splits = make_splits(read(table), {"train": 0.9, "validation": 0.05, "test": 0.05}, seed=seed)
        assert splits[read(table)["label"] == 9].value_counts().tolist() == [5, 5, 5]


PATIENTS = pa.table({"id": range(100), "patient": [k // 5 for k in range(100)], "label": [k % 2 for k in range(100)]})
LARGE = PATIENTS.set_column(1, "patient", pa.array([f"p{max(0, k - 49)}" for k in range(100)]))
HALVES = {"train": 0.5, "test": 0.5}


@pytest.mark.parametrize(
    ("table", "arguments", "expected"),
    [
        (PATIENTS, {"folds": 21}, "there are 20 entities for 21 splits"),
        (PATIENTS, {"folds": 1}, "folds=1: expected 2 or more"),
        (PATIENTS, {"proportions": {"train": 0.8, "test": 0.1}}, "sum to 0.9"),
        (PATIENTS, {"proportions": {"train": 1.0}}, "train=1: expected a share of the samples between 0 and 1"),
        (PATIENTS, {}, "proportions sum to 0"),
        (PATIENTS, {"proportions": HALVES, "folds": 2}, "leave nothing for 2 folds"),
        (PATIENTS, {"proportions": {"a/b": 0.5, "c": 0.5}}, "split 'a/b'"),
        (PATIENTS, {"proportions": {"fold0": 0.5, "c": 0.5}}, "split 'fold0'"),
        (PATIENTS, {"proportions": HALVES, "seed": -1}, "seed=-1"),
        (LARGE, {"proportions": {"a": 0.4, "b": 0.3, "c": 0.3}}, "entity p0 has 50 of 100 samples, and the largest"),
        (PATIENTS, {"proportions": {"train": 0.999, "test": 0.001}}, "classes would be missing: 0 in test, 1 in test"),
    ],
)
def test_splits_that_cannot_be_made_are_refused_by_name(
    table: pa.Table, arguments: dict[str, Any], expected: str
) -> None:
    with pytest.raises(SplitError) as raised:
        make_splits(read(table), **arguments)
    assert expected in str(raised.value)


def test_a_class_that_would_be_missing_in_a_split_is_named() -> None:
    # Both patients of grade 1 are larger than the test split.
    patient = [0] * 40 + [1] * 40 + list(range(2, 22))
    table = pa.table({"id": range(100), "patient": patient, "label": [int(k < 2) for k in patient]})
    with pytest.raises(SplitError, match=r"classes would be missing: 1 in test"):
        make_splits(read(table), {"train": 0.9, "test": 0.1})
    assert make_splits(read(table), {"train": 0.9, "test": 0.1}, balance="none").nunique() == 2
