"""Every rank yields as many batches as planned, also where all samples of a batch fail under on_error=skip."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from loaders.base import Batch, Samples
from loaders.errors import SampleError
from loaders.pipeline import Item, Tensors, UndecodableError
from loaders.records.epochs import DeliveredBatch, repeat_for_failed
from loaders.records.shards.convert import convert
from loaders.shared.processor import Failed
from loaders.streaming.loader import StreamingLoader

COUNT, BROKEN = 23, (4, 5, 11)


@dataclass(frozen=True)
class Numbers:
    """Reads bytes as numbers; an empty file is broken."""

    transforms: tuple[Any, ...] = ()

    def read(self, samples: Samples, sample_id: int) -> Any:
        """Return the file."""
        return samples.read(sample_id)

    def decode(self, encoded: Any, samples: Samples, sample_id: int) -> tuple[Any, dict[str, Any]]:
        """Return its bytes as numbers."""
        if len(encoded) < 2:
            raise UndecodableError("it is empty")
        return torch.from_numpy(np.frombuffer(encoded, np.uint8).astype(np.float32)), {}

    def collate(self, items: list[Item]) -> Tensors:
        """Stack them."""
        return Tensors(torch.stack([item.data for item in items]), torch.zeros(len(items), dtype=torch.int64), {})


@st.composite
def _epochs(draw: st.DrawFn) -> list[bool]:
    return draw(st.lists(st.booleans(), min_size=1, max_size=12))


@given(_epochs())
def test_a_failed_batch_is_replaced_by_a_copy_that_the_consumer_has_not_changed(has_batch: list[bool]) -> None:
    def item(number: int, good: bool) -> DeliveredBatch:
        ids = np.array([number])
        batch = Batch(ids, torch.full((1,), float(number)), torch.tensor([number]), 1)
        return DeliveredBatch((number,), batch if good else None, () if good else (Failed(number, f"sample {number}"),))

    items = itertools.starmap(item, enumerate(has_batch))
    if not any(has_batch):
        with pytest.raises(SampleError, match=f"all {len(has_batch)} samples .*sample 0"):
            list(repeat_for_failed(items))
        return
    yielded = []
    for one in repeat_for_failed(items):
        assert isinstance(one.batch, Batch)
        yielded.append((one.planned[0], int(one.batch.data[0]), one.is_repeat))
        assert one.batch.labels.tolist() == one.batch.ids.tolist() == [yielded[-1][1]]
        one.batch.data.fill_(-1)
        one.batch.labels.fill_(-1)
    good = [number for number, is_good in enumerate(has_batch) if is_good]
    expected = [max((k for k in good if k <= number), default=good[0]) for number in range(len(has_batch))]
    assert [(number, batch) for number, batch, _ in yielded] == list(enumerate(expected))
    assert [is_repeat for *_, is_repeat in yielded] == [not is_good for is_good in has_batch]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("broken")
    paths = tuple(f"{number:02d}.bin" for number in range(COUNT))
    for number, path in enumerate(paths):
        (root / path).write_bytes(b"-" if number in BROKEN else bytes([number]) * 4)
    sizes = np.array([(root / path).stat().st_size for path in paths])
    return convert(Samples(root, paths, np.zeros(COUNT, np.int64), sizes), root / "shards", key="broken")


def _loader(endpoint: str, **arguments: Any) -> StreamingLoader:
    own = {"transform": Numbers(), "decode": "torch", "seed": 1, "on_error": "skip", "streams": 1, "warm_bytes": 0}
    return StreamingLoader(endpoint=endpoint, timeout_s=20, **(own | arguments))


@pytest.mark.process
@pytest.mark.parametrize("remainder", ["drop", "pad", "uneven"])
@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("batch_size", [1, 2, 5])
def test_every_rank_yields_as_many_batches_as_planned(
    daemon: Any, remainder: str, world_size: int, batch_size: int
) -> None:
    came: Counter[int] = Counter()
    planned, skipped, repeated = [], set[int](), 0.0
    for rank in range(world_size):
        share = {"rank": rank, "world_size": world_size, "remainder": remainder, "batch_size": batch_size}
        with _loader(daemon.endpoint, **share) as loader:
            batches = [batch.ids.tolist() for batch in loader.epoch(0)]
            planned.append(-(-len(loader) // batch_size))
            assert len(batches) == planned[-1]
            came.update(itertools.chain(*batches))
            stats = loader.stats()
            skipped |= set(stats.skipped)
            repeated += stats.details.get("repeated_samples", 0.0)
            assert sum(map(len, batches)) == stats.samples
            failures = stats.details.get("skipped_samples", 0.0)
            assert stats.samples - stats.details.get("repeated_samples", 0.0) + failures == len(loader)
    assert remainder == "uneven" or len(set(planned)) == 1
    left_out = COUNT % world_size if remainder == "drop" else 0
    assert skipped <= set(BROKEN) and len(came) + len(skipped) == COUNT - left_out
    extra = -COUNT % world_size if remainder == "pad" else 0
    assert came.total() - len(came) <= repeated + extra


@pytest.mark.process
def test_a_resumed_rank_takes_the_steps_that_were_left(daemon: Any) -> None:
    share = {"rank": 0, "world_size": 2, "remainder": "drop", "batch_size": 1, "order": "strict"}
    with _loader(daemon.endpoint, **share) as loader:
        whole = [batch.ids.tolist() for batch in loader.epoch(0)]
    for taken in range(len(whole)):
        with _loader(daemon.endpoint, **share) as loader:
            before = [batch.ids.tolist() for batch in itertools.islice(loader.epoch(0), taken)]
            state = loader.state_dict()
            assert before == whole[:taken]
            if taken:
                loader.load_state_dict(state)
            assert len(list(loader.epoch(0))) == len(whole) - taken
