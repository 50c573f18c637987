from __future__ import annotations

from itertools import chain, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loaders.errors import LoaderConfigError
from loaders.streaming.planner import BatchPlan, plan

counts = st.lists(st.integers(1, 40), min_size=1, max_size=6)


def _records(batches: tuple[BatchPlan, ...]) -> list[tuple[int, int]]:
    slices = chain.from_iterable(batch.slices for batch in batches)
    return [(part.shard, part.first + index) for part in slices for index in range(part.records)]


@settings(deadline=None)
@given(counts, st.integers(1, 50), st.integers(0, 99), st.integers(0, 9), st.integers(1, 12), st.integers(1, 5))
def test_every_record_is_in_one_batch_of_one_node(
    shard_records: list[int], batch_size: int, seed: int, epoch: int, slice_records: int, nodes: int
) -> None:
    seen: list[tuple[int, int]] = []
    shares = []
    for node in range(nodes):
        batches = plan(
            shard_records,
            batch_size=batch_size,
            seed=seed,
            epoch=epoch,
            slice_records=slice_records,
            node=node,
            nodes=nodes,
        )
        share = _records(batches)
        assert len(batches) == -(-len(share) // batch_size)
        assert [batch.batch for batch in batches] == list(range(len(batches)))
        assert all(batch.records == batch_size for batch in batches[:-1])
        assert all(0 < part.records <= slice_records for batch in batches for part in batch.slices)
        seen += share
        shares.append(len(share))
    assert sorted(seen) == [(shard, index) for shard, n in enumerate(shard_records) for index in range(n)]
    assert max(shares) - min(shares) <= 1


def test_the_same_arguments_give_the_same_plan_and_epochs_differ() -> None:
    plans = [plan([50, 60], batch_size=8, seed=seed, epoch=epoch) for seed, epoch in ((1, 0), (1, 0), (1, 1), (2, 0))]
    assert plans[0] == plans[1]
    assert len({tuple(_records(batches)) for batches in plans}) == 3


def test_batches_are_mixed_anew_every_epoch() -> None:
    def together(epoch: int) -> set[frozenset[tuple[int, int]]]:
        batches = plan([256] * 4, batch_size=16, seed=0, epoch=epoch, slice_records=4)
        return {frozenset(_records((batch,))) for batch in batches}

    assert all(not first & second for first, second in pairwise(together(epoch) for epoch in range(5)))


def test_a_limit_keeps_the_first_records_of_the_share() -> None:
    whole = plan([30, 30], batch_size=8, seed=0, epoch=0)
    assert _records(plan([30, 30], batch_size=8, seed=0, epoch=0, limit=20)) == _records(whole)[:20]
    assert plan([30, 30], batch_size=8, seed=0, epoch=0, limit=1000) == whole


def test_a_batch_larger_than_the_dataset_is_one_short_batch() -> None:
    (batch,) = plan([3, 4], batch_size=100, seed=0, epoch=0)
    assert batch.records == 7


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"batch_size": 0}, "batch_size=0"),
        ({"slice_records": 0}, "slice_records=0"),
        ({"nodes": 2, "node": 2}, "node=2"),
        ({"limit": 0}, "limit=0"),
    ],
)
def test_a_number_out_of_range_is_named(arguments: dict[str, int], said: str) -> None:
    with pytest.raises(LoaderConfigError, match=said):
        plan([10], **({"batch_size": 4, "seed": 0, "epoch": 0} | arguments))
