"""Ranks share every epoch as they were told to."""

from __future__ import annotations

from collections import Counter

import pytest

from loaders import LoaderConfigError

pytestmark = pytest.mark.process

WORLD = 3


def shares(combination, epoch, remainder):
    found = []
    for rank in range(WORLD):
        with combination.make(rank=rank, world_size=WORLD, remainder=remainder) as loader:
            found.append([int(sample_id) for batch in loader.epoch(epoch) for sample_id in batch.ids])
            assert len(found[-1]) == len(loader)
    return found


@pytest.mark.parametrize("remainder", ["uneven", "drop", "pad"])
def test_ranks_are_disjoint_and_complete_but_for_the_declared_rest(any_loader, remainder):
    count = len(any_loader.data.samples)
    found = shares(any_loader, 1, remainder)
    seen = Counter(sample_id for share in found for sample_id in share)
    lengths = [len(share) for share in found]
    match remainder:
        case "uneven":
            assert seen == Counter(range(count)) and max(lengths) - min(lengths) == 1
        case "drop":
            assert lengths == [count // WORLD] * WORLD and max(seen.values()) == 1
        case "pad":
            assert lengths == [-(-count // WORLD)] * WORLD and set(seen) == set(range(count))


def test_ranks_of_torchruns_environment_share_every_epoch(any_loader, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", str(WORLD))
    seen = Counter()
    for rank in range(WORLD):
        monkeypatch.setenv("RANK", str(rank))
        with any_loader.make(remainder="uneven") as loader:
            seen.update(int(sample_id) for batch in loader.epoch(1) for sample_id in batch.ids)
    assert seen == Counter(range(len(any_loader.data.samples)))
    with pytest.raises(LoaderConfigError, match=r"uneven, drop or pad .*3 ranks.*rank=0, world_size=1"):
        any_loader.make()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"world_size": 2}, "remainder: .*uneven, drop or pad .*2 ranks"),
        ({"world_size": 2, "rank": 2, "remainder": "pad"}, "rank=2: .*0 to 1"),
        ({"world_size": 0}, "world_size=0"),
        ({"world_size": 2, "remainder": "split"}, "remainder='split': .*uneven, drop, pad"),
    ],
)
@pytest.mark.parametrize("name", ["pytorch", "records"])
def test_ranks_that_cannot_be_are_refused_by_name(table, datasets, serve, name, wrong, message):
    data, entry = datasets["image"], table[name]
    with pytest.raises(LoaderConfigError, match=message):
        entry.make(data, data.pipeline, serve(entry, data), **wrong)
