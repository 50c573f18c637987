from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch

from loaders.base import Batch, Samples
from loaders.errors import LoaderConfigError, LoaderError, SampleError, StreamError
from loaders.pipeline.image import ImageTransform
from loaders.records.shards.convert import convert
from loaders.streaming.loader import StreamingLoader

pytestmark = pytest.mark.process

SMALL = ImageTransform(size=16)
engines = pytest.mark.parametrize("decode", ["dali", "torch"])


def _loader(endpoint: str, **changed: object) -> StreamingLoader:
    arguments = {"transform": SMALL, "batch_size": 8, "seed": 5, "timeout_s": 10} | changed
    return StreamingLoader(endpoint=endpoint, **arguments)  # type: ignore[arg-type]


def _ids(batches: list[Batch]) -> list[int]:
    return sorted(sample_id for batch in batches for sample_id in batch.ids.tolist())


@engines
@pytest.mark.parametrize("batch_size", [1, 8, 61, 100])
def test_every_epoch_yields_every_sample_once(daemon, samples: Samples, decode: str, batch_size: int) -> None:
    with _loader(daemon.endpoint, decode=decode, batch_size=batch_size) as loader:
        for epoch in range(3):
            batches = list(loader.epoch(epoch))
            assert len(batches) == -(-len(samples) // batch_size)
            assert _ids(batches) == list(range(len(samples)))
            for batch in batches:
                assert batch.data.shape == (len(batch), 3, 16, 16) and batch.data.dtype == torch.float32
                assert batch.labels.tolist() == samples.labels[batch.ids].tolist()
                assert batch.nbytes == samples.sizes[batch.ids].sum()
        stats = loader.stats()
        assert stats.samples == 3 * len(samples) == 3 * len(loader)
        assert stats.bytes == 3 * samples.sizes.sum()
        assert stats.details["wire_bytes"] > stats.bytes


@engines
def test_pixels_are_those_of_the_shared_transform(daemon, samples: Samples, decode: str) -> None:
    with _loader(daemon.endpoint, decode=decode) as loader:
        for batch in loader.epoch(2):
            for sample_id, image in zip(batch.ids.tolist(), batch.data, strict=True):
                encoded = samples.path(sample_id).read_bytes()
                expected = SMALL.apply(encoded, seed=5, epoch=2, sample_id=sample_id)
                if decode == "torch":
                    assert torch.equal(image, expected)
                else:  # another decoder and resizer
                    assert (image - expected).abs().mean() < 0.1


@engines
def test_batches_that_are_kept_keep_their_pixels(daemon, decode: str) -> None:
    with _loader(daemon.endpoint, decode=decode) as loader:
        kept, sums = [], []
        for batch in loader.epoch(0):
            kept.append(batch)
            sums.append(float(batch.data.sum()))
        assert [float(batch.data.sum()) for batch in kept] == sums


def test_the_order_is_drawn_from_seed_and_epoch(daemon) -> None:
    def sets(seed: int, epoch: int) -> set[frozenset[int]]:
        with _loader(daemon.endpoint, seed=seed, slice_records=2, decode="torch") as loader:
            return {frozenset(batch.ids.tolist()) for batch in loader.epoch(epoch)}

    assert sets(0, 0) == sets(0, 0)
    assert sets(0, 0) != sets(0, 1) and sets(0, 0) != sets(1, 0)


def test_a_limit_ends_the_epoch_early(daemon) -> None:
    with _loader(daemon.endpoint, limit=20, decode="torch") as loader:
        batches = list(loader.epoch(0))
        assert [len(batch) for batch in batches].count(8) == 2 and len(set(_ids(batches))) == len(loader) == 20


@engines
def test_an_epoch_left_in_the_middle_leaves_nothing_for_the_next(daemon, samples: Samples, decode: str) -> None:
    with _loader(daemon.endpoint, decode=decode) as loader:
        for epoch in range(3):
            next(loader.epoch(epoch))
        assert _ids(list(loader.epoch(3))) == list(range(len(samples)))


@engines
def test_close_in_the_middle_of_an_epoch_ends_every_thread(daemon, decode: str) -> None:
    before = {thread.name for thread in threading.enumerate()}
    loader = _loader(daemon.endpoint, decode=decode)
    batches = loader.epoch(0)
    next(batches)
    loader.close()
    loader.close()
    assert {thread.name for thread in threading.enumerate()} <= before
    with pytest.raises(LoaderError, match="closed"):
        next(loader.epoch(1))


def test_loaders_at_once_do_not_disturb_one_another(daemon, samples: Samples) -> None:
    with _loader(daemon.endpoint, decode="torch") as one, _loader(daemon.endpoint, decode="dali", seed=1) as other:
        pairs = list(zip(one.epoch(0), other.epoch(0), strict=True))
    assert _ids([left for left, _ in pairs]) == _ids([right for _, right in pairs]) == list(range(len(samples)))


@engines
def test_a_daemon_that_comes_back_costs_no_sample(
    start_daemon: Callable[..., object], shards: Path, samples: Samples, decode: str
) -> None:
    daemon = start_daemon(shards)
    with _loader(daemon.endpoint, decode=decode, batch_size=2, prefetch_batches=4, timeout_s=20) as loader:
        epoch = loader.epoch(0)
        batches = [next(epoch) for _ in range(4)]
        daemon.kill()
        start_daemon(shards, port=daemon.port)
        batches += epoch
        assert _ids(batches) == list(range(len(samples)))


@engines
def test_a_daemon_that_stays_away_is_named(start_daemon: Callable[..., object], shards: Path, decode: str) -> None:
    daemon = start_daemon(shards)
    with _loader(daemon.endpoint, decode=decode, batch_size=2, prefetch_batches=4, timeout_s=1) as loader:
        epoch = loader.epoch(0)
        next(epoch)
        daemon.kill()
        with pytest.raises(StreamError, match=daemon.endpoint):
            list(epoch)


def test_close_does_not_wait_for_a_daemon_that_is_gone(start_daemon: Callable[..., object], shards: Path) -> None:
    daemon = start_daemon(shards)
    loader = _loader(daemon.endpoint, decode="torch", batch_size=2, prefetch_batches=2, timeout_s=120)
    threads = threading.active_count()
    next(loader.epoch(0))
    daemon.kill()
    time.sleep(0.2)
    loader.close()  # or the test's own limit of time is reached
    assert threading.active_count() <= threads


@pytest.fixture
def damaged(samples: Samples, tmp_path: Path) -> Iterator[Path]:
    """Shards in which sample 17 was cut short before it was converted."""
    root = tmp_path / "tree"
    for path in samples.paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        os.link(samples.root / path, root / path)
    whole = (root / samples.paths[17]).read_bytes()
    (root / samples.paths[17]).unlink()
    (root / samples.paths[17]).write_bytes(whole[:30])
    sizes = samples.sizes.copy()
    sizes[17] = 30
    yield convert(replace(samples, root=root, sizes=sizes), tmp_path / "shards", key="damaged")


@engines
def test_a_sample_that_cannot_be_decoded_is_named(
    start_daemon: Callable[..., object], damaged: Path, samples: Samples, decode: str
) -> None:
    daemon = start_daemon(damaged)
    with _loader(daemon.endpoint, decode=decode) as loader:
        for _ in range(2):  # and the loader is of use afterwards
            with pytest.raises(SampleError, match=rf"sample 17 \({samples.paths[17]}\)"):
                list(loader.epoch(0))


def test_damage_is_found_without_being_asked_for(
    start_daemon: Callable[..., object], samples: Samples, tmp_path: Path
) -> None:
    out = convert(samples, tmp_path / "out", key="a")
    shard = next(out.glob("*.tfrecord"))
    content = bytearray(shard.read_bytes())
    content[-20] ^= 1
    shard.write_bytes(content)
    with (
        _loader(start_daemon(out).endpoint, decode="torch") as loader,
        pytest.raises(StreamError, match=f"{shard.name}: record 60"),
    ):
        list(loader.epoch(0))


def test_threads_and_descriptors_do_not_grow_over_epochs(daemon) -> None:
    with _loader(daemon.endpoint, decode="dali") as loader:

        def use(epoch: int) -> tuple[int, int]:
            list(loader.epoch(epoch))
            return threading.active_count(), psutil.Process().num_fds()

        use(0)
        first = use(1)
        last = [use(epoch) for epoch in range(2, 12)][-1]
        # A leak is one an epoch; a helper's thread of torch's or DALI's may come or go meanwhile.
        assert last[0] < first[0] + 5
        assert last[1] < first[1] + 5


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"decode": "other"}, "decode='other'"),
        ({"num_threads": 0}, "num_threads=0"),
        ({"prefetch_batches": 0}, "prefetch_batches=0"),
        ({"prefetch_batches": "none"}, "prefetch_batches='none'"),
        ({"streams": 0}, "streams=0"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"device": "tpu?"}, "device='tpu\\?'"),
        *(
            ({name: value}, f"{name}={value!r}")
            for name in (
                *("batch_size", "seed", "num_threads", "slice_records", "shuffle_window", "limit", "epochs"),
                *("epochs_ahead", "prefetch_batches", "rank", "world_size", "warm_bytes"),
            )
            for value in (2.5, "2", True)
        ),
        *(({"prefetch_step": value}, f"prefetch_step={value!r}") for value in (-0.1, "2", True, float("nan"))),
        ({"epochs": 0}, "epochs=0"),
        ({"streams": True}, "streams=True"),
        ({"verify": "no"}, "verify='no'"),
        ({"keys": 5}, "keys=5"),
        ({"events": 5}, "events=5"),
        ({"decode": "torch", "sample_timeout_s": "1"}, "sample_timeout_s='1'"),
    ],
)
def test_an_argument_out_of_range_is_named(daemon, arguments: dict[str, object], said: str) -> None:
    with pytest.raises(LoaderConfigError, match=said):
        _loader(daemon.endpoint, **arguments)


@pytest.mark.parametrize("epoch", [-1, 1.5, "0", None, True])
def test_an_epoch_that_is_none_is_named(daemon, epoch: object) -> None:
    with _loader(daemon.endpoint) as loader, pytest.raises(LoaderConfigError, match=f"epoch={epoch!r}"):
        next(loader.epoch(epoch))  # type: ignore[arg-type]
