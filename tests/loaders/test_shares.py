from __future__ import annotations

import pytest
import torch.distributed
from torch.utils.data import DistributedSampler

from loaders import LoaderConfigError
from loaders.pipeline.image import epoch_order
from loaders.shared.shares import Share, place_among_ranks


@pytest.mark.parametrize(("count", "world_size"), [(13, 3), (12, 4), (2, 5)])
def test_a_share_is_cut_as_torchs_distributed_sampler_cuts_it(count: int, world_size: int) -> None:
    order = epoch_order(count, seed=3, epoch=1)
    for rank in range(world_size):
        for remainder in ("pad", "drop"):
            if remainder == "drop" and count < world_size:
                continue
            theirs = DistributedSampler(range(count), world_size, rank, shuffle=False, drop_last=remainder == "drop")
            ours = Share(count, 3, rank, world_size, remainder)  # type: ignore[arg-type]
            assert ours.order(1).tolist() == [int(order[place]) for place in theirs]
            assert len(ours) == len(theirs)


def test_an_uneven_share_may_be_empty_and_equal_ones_may_not_and_have_no_imbalance() -> None:
    assert len(Share(2, 0, 2, 3, "uneven")) == 0
    assert not len(Share(2, 0, 2, 3, "uneven").order(0))
    with pytest.raises(LoaderConfigError, match=r"remainder=drop.*2"):
        Share(2, 0, 0, 3, "drop")
    with pytest.raises(LoaderConfigError, match=r"imbalance=0.2: remainder=pad"):
        Share(82, 3, 0, 8, "pad", 0.2)


def test_an_imbalance_gives_the_last_rank_more_and_every_sample_once() -> None:
    shares = [Share(82, 3, rank, 8, "uneven", 0.2).order(1).tolist() for rank in range(8)]
    assert [len(share) for share in shares] == [10] * 7 + [12]
    assert [len(Share(82, 3, rank, 8, "uneven", 0.2)) for rank in range(8)] == [10] * 7 + [12]
    assert sorted(sample_id for share in shares for sample_id in share) == list(range(82))


def test_rank_and_world_size_are_the_given_ones_or_those_of_the_process(monkeypatch, tmp_path) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert place_among_ranks() == (0, 1)
    monkeypatch.setenv("RANK", "3")
    assert place_among_ranks() == (0, 1)  # one of the two alone is not torchrun's
    monkeypatch.setenv("WORLD_SIZE", "5")
    assert place_among_ranks() == (3, 5)
    assert place_among_ranks(1) == (1, 5) and place_among_ranks(None, 9) == (3, 9) and place_among_ranks(0, 1) == (0, 1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        assert place_among_ranks() == (0, 1)
    finally:
        torch.distributed.destroy_process_group()
    monkeypatch.setenv("WORLD_SIZE", "many")
    with pytest.raises(LoaderConfigError, match="WORLD_SIZE='many'"):
        place_among_ranks()
