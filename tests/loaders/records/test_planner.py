from __future__ import annotations

import hashlib
from collections import Counter
from itertools import chain, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loaders.errors import LoaderConfigError
from loaders.records.planner import BatchPlan, EpochPlan, plan_epoch

counts = st.lists(st.integers(1, 40), min_size=1, max_size=6)
drawn = st.fixed_dictionaries(
    {
        "batch_size": st.integers(1, 50),
        "seed": st.integers(0, 99),
        "epoch": st.integers(0, 9),
        "slice_records": st.integers(0, 12),
        "shuffle_window": st.integers(0, 60),
    }
)


def _records(batches: EpochPlan | tuple[BatchPlan, ...]) -> list[tuple[int, int]]:
    slices = chain.from_iterable(batch.slices for batch in batches)
    return [(part.shard, part.first + index) for part in slices for index in range(part.records)]


def _all(shard_records: list[int]) -> list[tuple[int, int]]:
    return [(shard, index) for shard, n in enumerate(shard_records) for index in range(n)]


def _ranks(shard_records: list[int], world_size: int, remainder: str, arguments: dict[str, int]) -> list[EpochPlan]:
    return [
        plan_epoch(shard_records, rank=rank, world_size=world_size, remainder=remainder, **arguments)  # type: ignore[arg-type]
        for rank in range(world_size)
    ]


@settings(deadline=None)
@given(counts, drawn, st.integers(1, 5), st.integers(1, 4))
def test_every_record_is_in_one_batch_of_one_rank(
    shard_records: list[int], arguments: dict[str, int], ranks: int, stretches: int
) -> None:
    arguments |= {"stretches": stretches}
    seen: list[tuple[int, int]] = []
    shares = []
    for batches in _ranks(shard_records, ranks, "uneven", arguments):
        share = _records(batches)
        assert len(batches) == -(-len(share) // arguments["batch_size"])
        assert [batch.batch for batch in batches] == list(range(len(batches)))
        assert all(batch.records == arguments["batch_size"] for batch in batches[:-1])
        assert all(part.records > 0 for batch in batches for part in batch.slices)
        if arguments["shuffle_window"] < 2 and arguments["slice_records"]:
            assert all(part.records <= arguments["slice_records"] for batch in batches for part in batch.slices)
        seen += share
        shares.append(len(share))
    assert sorted(seen) == _all(shard_records)
    assert max(shares) - min(shares) <= 1


@settings(deadline=None)
@given(counts, drawn, st.integers(1, 9))
def test_drop_leaves_out_fewer_records_than_there_are_ranks(
    shard_records: list[int], arguments: dict[str, int], ranks: int
) -> None:
    shares = [_records(batches) for batches in _ranks(shard_records, ranks, "drop", arguments)]
    assert {len(share) for share in shares} == {sum(shard_records) // ranks}
    seen = Counter(chain.from_iterable(shares))
    assert set(seen) <= set(_all(shard_records)) and set(seen.values()) <= {1}


@settings(deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), drawn, st.integers(1, 17))
def test_pad_repeats_as_few_records_as_make_the_ranks_equal(
    shard_records: list[int], arguments: dict[str, int], ranks: int
) -> None:
    shares = [_records(batches) for batches in _ranks(shard_records, ranks, "pad", arguments)]
    total = sum(shard_records)
    assert {len(share) for share in shares} == {-(-total // ranks)}
    seen = Counter(chain.from_iterable(shares))
    assert set(seen) == set(_all(shard_records))
    assert max(seen.values()) - min(seen.values()) <= 1


@pytest.mark.parametrize("remainder", ["uneven", "drop", "pad"])
def test_more_ranks_than_records_leave_ranks_without_samples(remainder: str) -> None:
    shares = [plan_epoch([2], batch_size=4, seed=0, epoch=0, rank=rank, world_size=5, remainder=remainder).records  # type: ignore[arg-type]
              for rank in range(5)]  # fmt: skip
    assert sorted(shares) == {"uneven": [0, 0, 0, 1, 1], "drop": [0] * 5, "pad": [1] * 5}[remainder]


def test_what_is_dropped_is_another_rest_every_epoch() -> None:
    def dropped(epoch: int) -> frozenset[tuple[int, int]]:
        arguments = {"batch_size": 4, "seed": 0, "epoch": epoch}
        kept = chain.from_iterable(_records(batches) for batches in _ranks([10, 9], 4, "drop", arguments))
        return frozenset(_all([10, 9])) - frozenset(kept)

    assert len({dropped(epoch) for epoch in range(6)}) > 3


@settings(deadline=None)
@given(counts, drawn, st.integers(1, 3), st.lists(st.integers(0, 2), min_size=6, max_size=6))
def test_grouping_changes_only_which_records_share_a_batch(
    shard_records: list[int], arguments: dict[str, int], ranks: int, groups: list[int]
) -> None:
    for batches in _ranks(shard_records, ranks, "uneven", arguments):
        grouped = batches.group(groups[: len(shard_records)])
        assert sorted(_records(grouped)) == sorted(_records(batches))
        assert [batch.records for batch in grouped] == [batch.records for batch in batches]
        mixed = [batch for batch in grouped if len({groups[part.shard] for part in batch.slices}) > 1]
        assert len(mixed) <= len(set(groups))
        _check_positions(grouped, plan_epoch(shard_records, **arguments))


def _check_positions(part: EpochPlan, whole: EpochPlan) -> None:
    sequence = _records(whole)
    for batch in part:
        assert [sequence[place] for place in part.list_positions(batch.batch)] == _records((batch,))


@settings(deadline=None)
@given(counts, drawn, st.randoms(use_true_random=False), st.integers(1, 9))
def test_what_is_left_is_what_was_not_marked_as_done(
    shard_records: list[int], arguments: dict[str, int], random: np.random.Generator, batch_size: int
) -> None:
    whole = plan_epoch(shard_records, **arguments)
    done = np.array([random.random() < 0.5 for _ in range(whole.records)])
    left = whole.exclude(done, number=7)
    kept = [record for record, mark in zip(_records(whole), done, strict=True) if not mark]
    assert _records(left) == kept
    assert [batch.batch for batch in left] == list(range(7, 7 + len(left)))
    _check_positions(left, whole)
    _check_positions(left.group([index % 2 for index in range(len(shard_records))]), whole)


def test_the_same_arguments_give_the_same_plan_and_epochs_differ() -> None:
    plans = [
        plan_epoch([50, 60], batch_size=8, seed=seed, epoch=epoch) for seed, epoch in ((1, 0), (1, 0), (1, 1), (2, 0))
    ]
    assert plans[0] == plans[1]
    assert len({tuple(_records(batches)) for batches in plans}) == 3


@pytest.mark.parametrize(("window", "digest"), [(0, "4ad562981ea568f2"), (16, "6556619c90ad270c")])
def test_the_order_of_a_seed_stays_what_checkpoints_were_made_of(window: int, digest: str) -> None:
    order = _records(plan_epoch([300, 7, 200], batch_size=32, seed=5, epoch=2, slice_records=6, shuffle_window=window))
    assert hashlib.sha256(repr(order).encode()).hexdigest()[:16] == digest


@pytest.mark.parametrize(("slice_records", "window"), [(4, 0), (16, 64)])
def test_batches_are_mixed_anew_every_epoch(slice_records: int, window: int) -> None:
    def together(epoch: int) -> set[frozenset[tuple[int, int]]]:
        batches = plan_epoch(
            [256] * 4, batch_size=16, seed=0, epoch=epoch, slice_records=slice_records, shuffle_window=window
        )
        return {frozenset(_records((batch,))) for batch in batches}

    assert all(not first & second for first, second in pairwise(together(epoch) for epoch in range(5)))


def test_every_record_comes_at_every_time_of_an_epoch_as_often() -> None:
    # Where in the epoch a record comes, over many seeds: each tenth of the epoch should have a tenth of its visits.
    visits = np.zeros((200, 10))
    for seed in range(500):
        order = _records(plan_epoch([120, 80], batch_size=7, seed=seed, epoch=3, shuffle_window=16))
        for place, (shard, index) in enumerate(order):
            visits[shard * 120 + index, place * 10 // 200] += 1
    # The standard deviation of a tenth of 500 visits is 6.7; of 2000 cells none is 6 of them away.
    assert abs(visits - 50).max() < 41
    assert 5.5 < visits.std() < 8


def test_a_window_parts_neighbours_and_moves_no_record_further_than_its_own_size() -> None:
    whole, mixed = (
        _records(plan_epoch([400], batch_size=20, seed=3, epoch=0, slice_records=10, shuffle_window=window))
        for window in (0, 100)
    )
    assert sorted(whole) == sorted(mixed)
    place = {record: index for index, record in enumerate(whole)}
    assert all(place[record] // 100 == index // 100 for index, record in enumerate(mixed))

    def neighbours(order: list[tuple[int, int]]) -> int:
        return sum(second[1] == first[1] + 1 for first, second in pairwise(order))

    assert neighbours(whole) > 350 and neighbours(mixed) < 30


def test_a_limit_keeps_the_first_records_of_the_epoch() -> None:
    whole = plan_epoch([30, 30], batch_size=8, seed=0, epoch=0)
    assert _records(plan_epoch([30, 30], batch_size=8, seed=0, epoch=0, limit=20)) == _records(whole)[:20]
    assert plan_epoch([30, 30], batch_size=8, seed=0, epoch=0, limit=1000) == whole
    shares = _ranks([30, 30], 3, "drop", {"batch_size": 8, "seed": 0, "epoch": 0, "limit": 20})
    assert [batches.records for batches in shares] == [6, 6, 6]


def test_a_plan_of_whole_shards_goes_through_several_of_them_at_a_time() -> None:
    def plan(epoch: int, stretches: int) -> EpochPlan:
        return plan_epoch([20] * 8, batch_size=5, seed=0, epoch=epoch, slice_records=0, stretches=stretches)

    one, two = tuple(plan(0, 1)), tuple(plan(0, 2))
    for batches in (one[place : place + 4] for place in range(0, 32, 4)):
        (shard,) = {part.shard for batch in batches for part in batch.slices}
        assert sorted(_records(batches)) == [(shard, index) for index in range(20)]
        for (_, first), *_ in (order := [_records((batch,)) for batch in batches]):
            assert [(shard, (first + index) % 20) for index in range(5)] in order
    in_turn = chain.from_iterable(zip(one[:16], one[16:], strict=True))
    assert [batch.slices for batch in two] == [batch.slices for batch in in_turn]
    assert [batch.slices[0].shard for batch in one] != [batch.slices[0].shard for batch in plan(1, 1)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"batch_size": 0}, "batch_size=0"),
        ({"slice_records": -1}, "slice_records=-1"),
        ({"shuffle_window": -1}, "shuffle_window=-1"),
        ({"epoch": -1}, "epoch=-1"),
        ({"seed": -1}, "seed=-1"),
        ({"world_size": 2, "rank": 2}, "rank=2"),
        ({"world_size": 0}, "world_size=0"),
        ({"world_size": 2}, "remainder: .*uneven, drop or pad .*2 ranks"),
        ({"world_size": 2, "remainder": "half"}, "remainder='half'"),
        ({"limit": 0}, "limit=0"),
    ],
)
def test_a_number_out_of_range_is_named(arguments: dict[str, int], said: str) -> None:
    with pytest.raises(LoaderConfigError, match=said):
        plan_epoch([10], **({"batch_size": 4, "seed": 0, "epoch": 0} | arguments))
