"""What both loaders of single files promise."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from loaders import (
    DaliLoader,
    ImageTransform,
    LoaderConfigError,
    LoaderError,
    PyTorchLoader,
    SampleError,
    Samples,
)

SIZE = 32
TRANSFORM = ImageTransform(size=SIZE)
KINDS: dict[str, Callable[..., Any]] = {
    "pytorch": lambda **options: PyTorchLoader(transform=TRANSFORM, num_workers=2, **options),
    "pytorch in process": lambda **options: PyTorchLoader(transform=TRANSFORM, num_workers=0, **options),
    "pytorch fresh workers": lambda **options: PyTorchLoader(
        transform=TRANSFORM, num_workers=2, persistent_workers=False, **options
    ),
    "dali": lambda **options: DaliLoader(transform=TRANSFORM, **options),
    "dali read": lambda **options: DaliLoader(transform=TRANSFORM, mmap=False, **options),
}

Tree = Callable[[int], Samples]
ExactlyOnce = Callable[..., Any]


@pytest.fixture(params=list(KINDS))
def make(request: pytest.FixtureRequest) -> Callable[..., Any]:
    return KINDS[request.param]


@pytest.mark.parametrize(("count", "batch_size"), [(40, 16), (32, 16), (5, 16), (1, 1)])
def test_every_epoch_gives_every_sample_once(
    make: Callable[..., Any], image_tree: Tree, exactly_once: ExactlyOnce, count: int, batch_size: int
) -> None:
    samples = image_tree(count)
    with make(samples=samples, batch_size=batch_size, seed=0) as loader:
        exactly_once(loader, samples, batch_size=batch_size, size=SIZE)


def test_all_loaders_give_the_same_samples_in_the_same_order_with_the_same_pixels(image_tree: Tree) -> None:
    samples = image_tree(40)
    epochs = {}
    for kind, make in KINDS.items():
        with make(samples=samples, batch_size=16, seed=7) as loader:
            epochs[kind] = list(loader.epoch(3))
    expected = epochs.pop("pytorch in process")
    for kind, batches in epochs.items():
        for batch, other in zip(expected, batches, strict=True):
            assert batch.ids.tolist() == other.ids.tolist(), kind
            levels = (batch.data - other.data).abs().mean(dim=(1, 2, 3)) * 255 * np.mean(TRANSFORM.std)
            assert levels.max() < (0.5 if "dali" in kind else 1e-4), kind


def test_an_epoch_is_the_same_whenever_it_is_asked_for(make: Callable[..., Any], image_tree: Tree) -> None:
    samples = image_tree(20)
    with make(samples=samples, batch_size=8, seed=1) as loader:
        first = list(loader.epoch(5))
        list(loader.epoch(2))
        again = list(loader.epoch(5))
    for batch, other in zip(first, again, strict=True):
        assert batch.ids.tolist() == other.ids.tolist()
        assert torch.equal(batch.data, other.data)


def test_an_epoch_broken_off_does_not_reach_into_the_next(
    make: Callable[..., Any], image_tree: Tree, exactly_once: ExactlyOnce
) -> None:
    samples = image_tree(60)
    with make(samples=samples, batch_size=8, seed=1) as loader:
        broken_off = loader.epoch(0)
        next(broken_off)
        batches = list(loader.epoch(1))
        assert sorted(np.concatenate([batch.ids for batch in batches]).tolist()) == list(range(60))
        with pytest.raises(LoaderError, match="another"):
            next(broken_off)


def test_batches_outlive_their_loader(make: Callable[..., Any], image_tree: Tree) -> None:
    with make(samples=image_tree(40), batch_size=8, seed=1) as loader:
        held = [(batch.data, batch.data.clone()) for batch in loader.epoch(0)]
        list(loader.epoch(1))
    for data, copy in held:
        assert torch.equal(data, copy)


@pytest.mark.parametrize("damage", ["truncated", "missing", "no image", "empty", "directory"])
def test_a_sample_that_fails_in_mid_epoch_is_named(make: Callable[..., Any], image_tree: Tree, damage: str) -> None:
    samples = image_tree(60)
    with make(samples=samples, batch_size=8, seed=2) as loader:
        order = [int(sample_id) for batch in loader.epoch(0) for sample_id in batch.ids]
    victim = order[37]
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


def test_the_sample_to_blame_is_found_among_those_read_ahead(make: Callable[..., Any], image_tree: Tree) -> None:
    samples = image_tree(60)
    with make(samples=samples, batch_size=8, seed=2) as loader:
        epoch = loader.epoch(0)
        next(epoch)
        for path in samples.root.rglob("*.jpg"):
            path.unlink()
        with pytest.raises(SampleError, match=r"sample \d+ \(.*\.jpg\) cannot be read: No such file"):
            list(epoch)


def settled(resources: Callable[[], dict[str, int]], expected: dict[str, int] | None = None) -> dict[str, int]:
    """Wait for what is expected, or for no change: the queues' threads end a moment after their workers."""
    deadline, last = time.monotonic() + 10, resources()
    while time.monotonic() < deadline and last != expected:
        time.sleep(0.3)
        now = resources()
        if expected is None and now == last:
            break
        last = now
    return last


def test_close_in_mid_epoch_ends_everything_and_may_be_repeated(
    make: Callable[..., Any],
    image_tree: Tree,
    resources: Callable[[], dict[str, int]],
    orphaned_memory: Callable[[], list[str]],
) -> None:
    samples = image_tree(60)
    # Engines keep a few descriptors and threads of their own once they were used.
    with make(samples=samples, batch_size=4, seed=0) as loader:
        next(loader.epoch(0))
    before = settled(resources)
    loader = make(samples=samples, batch_size=4, seed=0)
    epoch = loader.epoch(0)
    next(epoch)
    loader.close()
    loader.close()
    with pytest.raises(LoaderError, match="closed"):
        next(epoch)
    assert settled(resources, before) == before
    assert not orphaned_memory()


def test_nothing_grows_over_five_epochs(
    make: Callable[..., Any], image_tree: Tree, resources: Callable[[], dict[str, int]]
) -> None:
    counts = []
    with make(samples=image_tree(24), batch_size=8, seed=0) as loader:
        for epoch in range(5):
            for _ in loader.epoch(epoch):
                pass
            counts.append(resources())
    # Three epochs lie between; a thread of torch's that comes and goes is no leak.
    assert counts[-1]["threads"] < counts[1]["threads"] + 3
    assert counts[-1]["descriptors"] <= counts[1]["descriptors"] + 4


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"batch_size": 0}, "batch_size=0: expected a whole number that is 1 or more"),
        ({"batch_size": 2.5}, "batch_size=2.5"),
        ({"device": "tpu"}, "device='tpu': expected cpu or cuda"),
    ],
)
def test_an_argument_that_cannot_be_is_refused_by_name(
    make: Callable[..., Any], image_tree: Tree, wrong: dict[str, object], message: str
) -> None:
    with pytest.raises(LoaderConfigError, match=message):
        make(**{"samples": image_tree(2), "batch_size": 1, "seed": 0} | wrong)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_gpu_that_is_not_there_is_refused_with_the_remedy(make: Callable[..., Any], image_tree: Tree) -> None:
    with pytest.raises(LoaderConfigError, match="no usable GPU; use device=cpu"):
        make(samples=image_tree(2), batch_size=1, seed=0, device="cuda")


def test_an_empty_dataset_is_refused(make: Callable[..., Any], image_tree: Tree) -> None:
    with pytest.raises(LoaderConfigError, match="no samples under"):
        make(samples=image_tree(2).first(0), batch_size=1, seed=0)


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
