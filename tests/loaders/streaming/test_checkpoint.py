from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from loaders.base import Samples
from loaders.errors import LoaderConfigError
from loaders.pipeline.image import ImageTransform
from loaders.records.planner import plan_epoch
from loaders.records.shards.convert import convert
from loaders.streaming.checkpoint import Checkpoint
from loaders.streaming.loader import StreamingLoader

pytestmark = pytest.mark.process

ALL = list(range(61))


def _loader(endpoint: str, **changed: object) -> StreamingLoader:
    arguments = {"transform": ImageTransform(size=8), "batch_size": 8, "seed": 5, "timeout_s": 10, "decode": "raw"}
    return StreamingLoader(endpoint=endpoint, **(arguments | changed))  # type: ignore[arg-type]


def _kept(state: dict[str, Any]) -> dict[str, Any]:
    """A state as it comes back from a file, which may hold nothing but numbers, text and bytes."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    kept: dict[str, Any] = torch.load(file, weights_only=True)
    return kept


@pytest.mark.parametrize("order", ["arrival", "strict"])
@pytest.mark.parametrize("decode", ["raw", "torch"])
@pytest.mark.parametrize("taken", [1, 3, 7, 8])
def test_what_was_given_before_the_break_is_not_given_again(daemon, order: str, decode: str, taken: int) -> None:
    with _loader(daemon.endpoint, order=order, decode=decode) as loader:
        list(loader.epoch(0))
        batches = loader.epoch(1)
        before = [next(batches).ids.tolist() for _ in range(taken)]
        state = _kept(loader.state_dict())
        next(batches, None)  # what is taken after the checkpoint is given again
    with _loader(daemon.endpoint, order=order, decode=decode, streams=3) as loader:
        loader.load_state_dict(state)
        after = [batch.ids.tolist() for batch in loader.epoch(1)]
        assert len(after) == 8 - taken
        assert sorted(chain(*before, *after)) == ALL
        for epoch in (2, 1):  # the one after it, and the same one again
            assert sorted(i for batch in loader.epoch(epoch) for i in batch.ids.tolist()) == ALL
    if order == "strict":
        with _loader(daemon.endpoint, order=order, decode=decode) as loader:
            assert [batch.ids.tolist() for batch in loader.epoch(1)] == before + after


def test_a_resumed_epoch_is_itself_resumed(daemon) -> None:
    given: list[int] = []
    state: dict[str, Any] = {}
    runs = 0
    while len(given) < 61:
        with _loader(daemon.endpoint, batch_size=5, prefetch_batches=3) as loader:
            loader.load_state_dict(state)
            for batch in islice(loader.epoch(4), 3):
                given += batch.ids.tolist()
            state = _kept(loader.state_dict())
        runs += 1
    assert sorted(given) == ALL and runs == 5
    with _loader(daemon.endpoint) as loader:
        loader.load_state_dict(state)
        assert list(loader.epoch(4)) == []
        assert len(list(loader.epoch(5))) == 8


def test_batch_size_and_engine_may_be_others_afterwards(daemon) -> None:
    with _loader(daemon.endpoint, batch_size=7) as loader:
        epoch = loader.epoch(0)
        before = [i for _ in range(4) for i in next(epoch).ids.tolist()]
        state = loader.state_dict()
    with _loader(daemon.endpoint, batch_size=10, decode="torch", order="strict", prefetch_batches=2) as loader:
        loader.load_state_dict(state)
        sizes = [len(batch) for batch in loader.epoch(0)]
        assert sizes == [10, 10, 10, 3]
        loader.load_state_dict(state)
        assert sorted(before + [i for batch in loader.epoch(0) for i in batch.ids.tolist()]) == ALL


def test_a_state_that_is_loaded_is_the_state_until_an_epoch_begins(daemon) -> None:
    with _loader(daemon.endpoint) as loader:
        assert loader.state_dict() == {}
        next(loader.epoch(3))
        state = loader.state_dict()
    with _loader(daemon.endpoint) as loader:
        loader.load_state_dict(state)
        assert loader.state_dict() == state
        # Another epoch than the one that was broken off begins anew.
        assert len(list(loader.epoch(0))) == len(list(loader.epoch(3))) == 8
        loader.load_state_dict({})
        assert loader.state_dict() == {}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"seed": 6}, "seed was 5 .*6"),
        ({"slice_records": 4}, "slice_records was 8"),
        ({"shuffle_window": 16}, "shuffle_window was 0"),
        ({"limit": 30}, "limit was None"),
    ],
)
def test_a_setting_that_changes_the_order_is_named(daemon, changed: dict[str, object], said: str) -> None:
    with _loader(daemon.endpoint) as loader:
        next(loader.epoch(0))
        state = loader.state_dict()
    with _loader(daemon.endpoint, **changed) as loader, pytest.raises(LoaderConfigError, match=said):
        loader.load_state_dict(state)


def test_other_data_is_named(daemon, start_daemon: Callable[..., Any], samples: Samples, tmp_path: Path) -> None:
    with _loader(daemon.endpoint) as loader:
        next(loader.epoch(0))
        state = loader.state_dict()
    other = start_daemon(convert(samples, tmp_path / "other", key="other", seed=9))
    with _loader(other.endpoint) as loader, pytest.raises(LoaderConfigError, match="fingerprint"):
        loader.load_state_dict(state)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"version": 9}, "version 9"),
        ({"delivered": b"junk"}, "damaged"),
        ({"before": b"junk"}, "damaged"),
        ({"epoch": None}, "checkpoint"),
    ],
)
def test_a_damaged_state_is_refused(daemon, changed: dict[str, object], said: str) -> None:
    with _loader(daemon.endpoint) as loader:
        next(loader.epoch(0))
        state = loader.state_dict() | changed
        with pytest.raises(LoaderConfigError, match=said):
            loader.load_state_dict(state)


_STAGES = st.lists(
    st.tuples(st.integers(1, 5), st.sampled_from(["uneven", "drop", "pad"]), st.integers(1, 9)), min_size=2, max_size=4
)


@settings(deadline=None, max_examples=80)
@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=4),
    _STAGES,
    st.one_of(st.none(), st.integers(1, 90)),
    st.sampled_from([0, 16]),
    st.randoms(use_true_random=False),
)
def test_what_no_rank_delivered_comes_once_over_any_other_number_of_ranks(
    shard_records: list[int], stages: list[tuple[int, Any, int]], limit: int | None, window: int, random: Any
) -> None:
    planned: dict[str, Any] = {"seed": 3, "slice_records": 3, "shuffle_window": window, "limit": limit}
    everything = _records(plan_epoch(shard_records, batch_size=7, epoch=1, **planned))
    states: list[dict[str, Any]] = []
    given: Counter[tuple[int, int]] = Counter()
    for number, (world_size, remainder, batch_size) in enumerate(stages, 1):
        is_last, saved, shares = number == len(stages), [], []
        is_shared_anew = (
            not states
            or states[0]["settings"] | {"world_size": world_size, "remainder": remainder} != (states[0]["settings"])
        )
        now: Counter[tuple[int, int]] = Counter()
        for rank in range(world_size):
            known = planned | {"rank": rank, "world_size": world_size, "remainder": remainder}
            start = Checkpoint.start(1, len(everything))
            if states:
                start = Checkpoint.of(states, known | {"catalog": "x"}, len(everything))
            whole = plan_epoch(shard_records, batch_size=batch_size, epoch=1, **known, done=start.before)
            left = whole.exclude(start.delivered, number=0)
            shares.append(left.records)
            delivered = start.delivered.copy()
            for batch in left:
                if is_last or random.random() < 0.5:
                    now.update(_records([batch]))
                    delivered[left.list_positions(batch.batch)] = True
            state = Checkpoint(1, delivered, start.before).state(known | {"catalog": "x"}, is_complete=False)
            saved.append(_kept(state))
        if is_shared_anew:
            assert not set(now) & set(given)
            assert max(shares) - min(shares) <= (1 if remainder == "uneven" else 0)
        given += now
        states = saved
    assert set(given) <= set(everything)
    missing = len(set(everything) - set(given))
    assert missing < stages[-1][0] if stages[-1][1] == "drop" else missing == 0
    if not any(remainder == "pad" for _, remainder, _ in stages):
        assert set(given.values()) <= {1}


def _records(batches: Any) -> list[tuple[int, int]]:
    slices = chain.from_iterable(batch.slices for batch in batches)
    return [(part.shard, part.first + index) for part in slices for index in range(part.records)]


@pytest.mark.parametrize("order", ["arrival", "strict"])
def test_other_numbers_of_ranks_resume_what_all_have_left(daemon, order: str) -> None:
    given: list[int] = []
    states: list[dict[str, Any]] = []
    for world_size, batches in ((2, 2), (3, 1), (1, 1), (4, 99)):
        saved = []
        for rank in range(world_size):
            ranked = {"rank": rank, "world_size": world_size, "remainder": "uneven"}
            with _loader(daemon.endpoint, batch_size=5, order=order, **ranked) as loader:
                loader.load_state_dict(states)
                for batch in islice(loader.epoch(2), batches + (rank == 0)):
                    given += batch.ids.tolist()
                saved.append(_kept(loader.state_dict()))
                assert saved[-1]["is_complete"] == (batches == 99)
        states = saved
    assert sorted(given) == ALL


def test_one_state_of_several_ranks_says_what_to_do(daemon) -> None:
    ranked = {"world_size": 2, "remainder": "uneven"}
    states = []
    for rank in range(2):
        with _loader(daemon.endpoint, rank=rank, **ranked) as loader:
            next(loader.epoch(0))
            states.append(loader.state_dict())
    with _loader(daemon.endpoint, rank=1, world_size=3, remainder="drop") as loader:
        with pytest.raises(LoaderConfigError, match=r"\[0\] of 2, and this is rank 1 of 3"):
            loader.load_state_dict(states[0])
        with pytest.raises(LoaderConfigError, match=r"\[0\] of 2"):
            loader.load_state_dict(states[:1])
        with pytest.raises(LoaderConfigError, match="world_size"):
            loader.load_state_dict([states[0], states[1] | {"epoch": 1}])
        with pytest.raises(LoaderConfigError, match="seed was 9"):
            loader.load_state_dict([states[0], states[1] | {"settings": states[1]["settings"] | {"seed": 9}}])
