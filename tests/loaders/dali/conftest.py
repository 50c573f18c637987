"""Small datasets of the three workloads whose samples are no single images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import pytest

from loaders import Batch, DaliLoader, Samples
from loaders.pipeline import Pipeline, Tensors, load_item
from tests.loaders.small_data import make_sounds, make_volumes


class Through(Protocol):
    """Runs an epoch through DALI, and the samples of each batch through the pipeline itself."""

    def __call__(self, samples: Samples, pipeline: Pipeline, **options: Any) -> list[tuple[Batch, Tensors]]: ...


@pytest.fixture
def through() -> Through:
    def run(samples: Samples, pipeline: Pipeline, **options: Any) -> list[tuple[Batch, Tensors]]:
        with DaliLoader(samples=samples, transform=pipeline, seed=3, **{"batch_size": 4, **options}) as loader:
            assert loader.notes[0].startswith("DALI's operators run ")
            batches = list(loader.epoch(2))
        assert sorted(int(k) for batch in batches for k in batch.ids) == list(range(len(samples)))
        return [(batch, expected(samples, pipeline, batch)) for batch in batches]

    def expected(samples: Samples, pipeline: Pipeline, batch: Batch) -> Tensors:
        return pipeline.collate([load_item(pipeline, samples, int(k), seed=3, epoch=2) for k in batch.ids])

    return run


@pytest.fixture
def volumes(tmp_path: Path) -> Callable[..., Samples]:
    """Makes cases in MLPerf's form, each of another shape."""
    return partial(make_volumes, tmp_path)


@pytest.fixture
def sounds(tmp_path: Path) -> Callable[[Sequence[int]], Samples]:
    """Makes FLAC files of so many samples each."""
    return partial(make_sounds, tmp_path)
