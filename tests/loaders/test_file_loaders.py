"""What the loaders of files say of files and arguments that cannot be; what they promise is in acceptance/."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from loaders import ImageTransform, LoaderConfigError, LoaderError, SampleError, Samples
from loaders.pipeline.image import epoch_order
from tests.loaders.acceptance.conftest import TABLE

TRANSFORM = ImageTransform(size=32)
KINDS = ("pytorch", "pytorch_in_process", "pytorch_fresh", "dali", "dali_mapped", "spdl", "spdl_decode")

Tree = Callable[[int], Samples]


def make_loader(kind: str, **options: Any) -> Any:
    return TABLE[kind].find()(transform=TRANSFORM, **{**TABLE[kind].options, **options})


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest) -> Callable[..., Any]:
    return partial(make_loader, request.param)


@pytest.mark.process
@pytest.mark.parametrize("damage", ["truncated", "missing", "no image", "empty", "directory"])
def test_a_sample_that_fails_in_mid_epoch_is_named(make: Callable[..., Any], image_tree: Tree, damage: str) -> None:
    samples = image_tree(60)
    victim = int(epoch_order(60, seed=2, epoch=0)[37])
    path = samples.path(victim)
    whole = path.read_bytes()
    path.unlink()
    match damage:
        case "truncated":
            path.write_bytes(whole[: len(whole) // 5])
        case "no image":
            path.write_bytes(b"this is no image" * 100)
        case "empty":
            path.touch()
        case "directory":
            path.mkdir()
    with make(samples=samples, batch_size=8, seed=2) as loader, pytest.raises(SampleError) as caught:
        list(loader.epoch(0))
    assert f"sample {victim} ({path})" in str(caught.value)


@pytest.mark.process
@pytest.mark.parametrize("remainder", ["drop", "pad"])
@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("kind", ["pytorch", "pytorch_in_process", "spdl", "dali"])
def test_ranks_take_equal_steps_where_whole_batches_fail(
    kind: str, image_tree: Tree, batch_size: int, remainder: str
) -> None:
    samples = image_tree(17)
    for sample_id in (0, 3, 4, 5, 6, 11):
        samples.path(sample_id).write_bytes(b"this is no image")
    counts, seen = [], []
    for rank in range(2):
        share = {"rank": rank, "world_size": 2, "remainder": remainder, "on_error": "skip"}
        more = {"operators": "python"} if kind == "dali" else {}
        with make_loader(kind, samples=samples, batch_size=batch_size, seed=1, **share, **more) as loader:
            batches = []
            for batch in loader.epoch(0):
                assert not (batch.data == -99).any(), "a copy of a batch that the consumer has changed"
                batches.append(batch.ids.tolist())
                batch.data.fill_(-99)
            counts.append(len(batches))
            repeated = int(loader.stats().details.get("repeated_samples", 0))
            ids = [sample_id for batch in batches for sample_id in batch]
            assert len(ids) - len(set(ids)) in (repeated, repeated + 1)  # "pad" gives one sample twice
            seen += ids
    assert counts[0] == counts[1] == -(-(8 if remainder == "drop" else 9) // batch_size)
    assert not {0, 3, 4, 5, 6, 11} & set(seen)


@pytest.mark.process
def test_a_rank_without_a_sample_that_works_raises(image_tree: Tree) -> None:
    samples = image_tree(4)
    for sample_id in range(4):
        samples.path(sample_id).write_bytes(b"this is no image")
    share = {"rank": 0, "world_size": 2, "remainder": "drop", "on_error": "skip"}
    with (
        make_loader("pytorch_in_process", samples=samples, batch_size=1, seed=1, **share) as loader,
        pytest.raises(SampleError, match="all 2 samples of this rank's epoch failed"),
    ):
        list(loader.epoch(0))


@pytest.mark.process
def test_the_sample_to_blame_is_found_among_those_read_ahead(make: Callable[..., Any], image_tree: Tree) -> None:
    samples = image_tree(60)
    with make(samples=samples, batch_size=8, seed=2) as loader:
        epoch = loader.epoch(0)
        next(epoch)
        for path in samples.root.rglob("*.jpg"):
            path.unlink()
        with pytest.raises(SampleError, match=r"sample \d+ \(.*\.jpg\)"):
            list(epoch)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_gpu_that_is_not_there_is_refused_with_the_remedy(make: Callable[..., Any], image_tree: Tree) -> None:
    with pytest.raises(LoaderConfigError, match="device=cpu"):
        make(samples=image_tree(2), batch_size=1, seed=0, device="cuda")


def test_an_empty_dataset_is_refused(make: Callable[..., Any], image_tree: Tree) -> None:
    with pytest.raises(LoaderConfigError, match="no samples under"):
        make(samples=image_tree(2).first(0), batch_size=1, seed=0)


@pytest.mark.process
def test_a_root_that_is_gone_is_named(make: Callable[..., Any], image_tree: Tree) -> None:
    gone = image_tree(2).root.parent / "gone"
    samples = replace(image_tree(2), root=gone)
    with make(samples=samples, batch_size=1, seed=0) as loader, pytest.raises(LoaderError, match=str(gone)):
        list(loader.epoch(0))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_batches_are_on_the_gpu_that_was_asked_for(make: Callable[..., Any], image_tree: Tree) -> None:
    samples = image_tree(20)
    with make(samples=samples, batch_size=8, seed=0, device="cuda") as loader:
        for batch in loader.epoch(0):
            assert batch.data.is_cuda
            assert batch.labels.is_cuda
            assert batch.labels.cpu().tolist() == samples.labels[batch.ids].tolist()
