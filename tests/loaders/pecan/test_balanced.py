"""SizeBalancedLoader: large files in batches of their own, evenly among the others."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loaders import LoaderConfigError, LoaderError, SampleError, SizeBalancedLoader
from loaders.pecan.balanced import interleave, split_by_size
from loaders.pipeline.image import epoch_order


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 20), min_size=1, max_size=60), st.integers(1, 9), st.integers(0, 3), st.integers(0, 100))
def test_the_two_classes_hold_every_sample_once_in_no_more_batches_than_needed(
    sizes: list[int], batch_size: int, epoch: int, percentile: int
) -> None:
    known = np.array(sizes, np.int64)
    is_slow = known > np.percentile(known, percentile)
    quick, slow = split_by_size(epoch_order(len(sizes), seed=0, epoch=epoch), known, is_slow, batch_size)
    assert Counter([*quick.tolist(), *slow.tolist()]) == Counter(range(len(sizes)))
    assert sum(-(-len(ids) // batch_size) for ids in (quick, slow)) == -(-len(sizes) // batch_size)
    if len(quick) and len(slow):
        assert known[quick].max() <= known[slow].min()


@given(st.integers(0, 40), st.integers(0, 40))
def test_slow_batches_lie_evenly_and_last(quick: int, slow: int) -> None:
    turns = interleave(quick, slow)
    assert Counter(turns) == Counter([0] * quick + [1] * slow)
    assert not slow or turns[-1] == 1
    for at in range(len(turns)):
        # Never more slow ones than their share of what has been given.
        assert sum(turns[: at + 1]) * quick <= (turns[: at + 1].count(0)) * slow + slow * (quick == 0)


def make(samples: Any, pipeline: Any, **options: Any) -> SizeBalancedLoader:
    common = {"samples": samples, "transform": pipeline, "batch_size": 2, "seed": 0, "num_workers": 2}
    return SizeBalancedLoader(**{**common, **options})


@pytest.fixture
def eight(texts: Any) -> Any:
    return texts(10, 900, 20, 30, 800, 40, 50, 60)


@pytest.mark.process
def test_large_files_come_together_and_everything_once(eight: Any, Pipeline: Any) -> None:
    with make(eight, Pipeline(())) as loader:
        for epoch in (0, 1):
            ids = [batch.ids.tolist() for batch in loader.epoch(epoch)]
            assert sorted(k for batch in ids for k in batch) == list(range(8))
            assert set(ids[-1]) == {1, 4}
        assert (loader.stats().samples, loader.stats().batches, len(loader)) == (16, 8, 8)
    assert "above 245 bytes, the 75th percentile" in loader.notes[0] and "1 of 2 workers" in loader.notes[0]
    with pytest.raises(LoaderError, match="closed"):
        next(loader.epoch(2))


def test_background_workers_are_given_by_the_bytes_that_they_read_or_as_asked(eight: Any, Pipeline: Any) -> None:
    with (
        make(eight, Pipeline(()), num_workers=8) as by_bytes,
        make(eight, Pipeline(()), num_workers=8, background_workers=3) as asked,
    ):
        assert "7 of 8 workers" in by_bytes.notes[0] and "3 of 8 workers" in asked.notes[0]
    with pytest.raises(LoaderConfigError, match="background_workers=2"):
        make(eight, Pipeline(()), background_workers=2)
    with pytest.raises(LoaderConfigError, match="percentile=101"):
        make(eight, Pipeline(()), percentile=101)


@pytest.mark.process
def test_transforms_are_reordered_where_asked(eight: Any, Pipeline: Any, Times: Any) -> None:
    pipeline = Pipeline((Times(2, "Grow", frozenset({"Same"})), Times(1, "Same")))
    with make(eight, pipeline, reorder_transforms=True) as loader:
        assert loader.notes[1] == "AutoOrder moves Grow from 1 to 2, of 2 transforms (5 samples measured)"
        assert sum(len(batch) for batch in loader.epoch(0)) == 8


@pytest.mark.process
def test_a_sample_that_fails_in_either_lane_is_named_or_left_out(eight: Any, Pipeline: Any) -> None:
    eight.path(4).unlink()
    with make(eight, Pipeline(())) as loader, pytest.raises(SampleError, match="sample 4 "):
        list(loader.epoch(0))
    eight.path(0).unlink()
    with make(eight, Pipeline(()), on_error="skip") as loader:
        assert sorted(int(k) for batch in loader.epoch(0) for k in batch.ids) == [1, 2, 3, 5, 6, 7]
        assert set(loader.stats().skipped) == {0, 4} and loader.stats().details["skipped_samples"] == 2
