"""How well an order of records mixes classes, measured from their labels."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest

from loaders.records.shards.mixing import Mixing, measure_mixing

CLASSES, RECORDS = 100, 6000
FULL = 27.57
"""Mean number of classes in 32 of 6000 records of 100 classes: 100 * (1 - C(5940, 32) / C(6000, 32))."""


def test_shuffled_shards_keep_the_usual_order() -> None:
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(CLASSES), RECORDS // CLASSES))
    mixing = measure_mixing(np.array_split(labels, 4))
    assert (mixing.slice_records, mixing.shuffle_window) == (8, 0)
    assert mixing.usual == mixing.chosen and abs(mixing.usual / FULL - 1) < 0.03 and abs(mixing.shuffled - FULL) < 0.1


@pytest.mark.parametrize(
    ("labels", "shuffled"),
    [
        ([[-1] * 50, [-1] * 9], 1),
        ([[3]], 1),
        ([list(range(500))], 32),
        ([[0] * 16, [1] * 16], 2),
        ([[0, 0, 1]], 2),
    ],
)
def test_any_labels_can_be_measured(labels: list[list[int]], shuffled: float) -> None:
    mixing = measure_mixing([np.array(shard, np.int64) for shard in labels])
    assert mixing.shuffled == mixing.chosen == shuffled


@pytest.mark.parametrize("classes", [2, 10, 1000])
def test_sorted_classes_are_mixed_whatever_their_number(classes: int) -> None:
    labels = np.repeat(np.arange(classes), 20_000 // classes)
    mixing = measure_mixing(np.array_split(labels, 7))
    assert mixing.chosen >= 0.9 * mixing.shuffled


def test_what_is_no_measure_is_not_taken_for_one() -> None:
    mixing = Mixing(27.5, 5.0, 26.0, 8, 1024)
    assert Mixing.of(asdict(mixing)) == mixing
    for damage in ({"shuffled": 0}, {"chosen": float("nan")}, {"usual": 33}, {"shuffle_window": -1}, {"more": 1}):
        assert Mixing.of(asdict(mixing) | damage) is None
    for damage in ({"slice_records": 0}, {"slice_records": 2.5}, {"slice_records": True}, {"shuffle_window": 2**40}):
        assert Mixing.of(asdict(mixing) | damage) is None
    assert Mixing.of(None) is None and Mixing.of({}) is None
