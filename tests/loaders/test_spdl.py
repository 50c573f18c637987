from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import obstore
import psutil
import pytest
import torch

from loaders import ImageTransform, LoaderConfigError, SampleError, Samples, SampleTimeoutError, SpdlLoader
from loaders.base import SampleSource
from loaders.pipeline import WrappedPipeline
from loaders.pipeline.image import epoch_order
from loaders.shared.threads import DaemonThreads
from loaders.spdl.image import is_cmyk_jpeg

TRANSFORM = ImageTransform(size=32)
Tree = Callable[[int], Samples]


@pytest.mark.parametrize(
    ("options", "stages"), [({}, ["load"]), ({"read_concurrency": 2}, ["read", "transform"])], ids=["one", "two"]
)
def test_the_stats_tell_of_every_stage_and_queue(image_tree: Tree, options: dict[str, int], stages: list[str]) -> None:
    with SpdlLoader(samples=image_tree(12), transform=TRANSFORM, batch_size=4, seed=0, **options) as loader:
        list(loader.epoch(0))
        list(loader.epoch(1))
        figures = loader.stats().details
    for stage, count in {"read": 24, "decode": 24, "random_resized_crop": 24, "normalize": 24, "collate": 6}.items():
        assert figures[f"{stage}_count"] == count
        assert 0 < figures[f"{stage}_mean_s"] <= figures[f"{stage}_p99_s"] * 24
    for queue in ("src", *stages, "aggregate", "collate", "sink"):
        assert 0 <= figures[f"{queue}_queue_occupancy"] <= 1


@dataclass(frozen=True)
class Watched(WrappedPipeline):
    """Images that are read one after the other and decoded two at a time, or it fails; one waits for an event."""

    of: ImageTransform
    late: int = -1
    event: threading.Event = field(default_factory=threading.Event)
    reading: threading.Lock = field(default_factory=threading.Lock)
    pair: threading.Barrier | None = None

    def read(self, samples: SampleSource, sample_id: int) -> bytes | memoryview:
        assert self.reading.acquire(blocking=False) or self.pair is None
        try:
            return self.of.read(samples, sample_id)
        finally:
            if self.pair is not None:
                self.reading.release()

    def decode(self, encoded: Any, samples: SampleSource, sample_id: int) -> Any:
        if self.pair is not None:
            self.pair.wait(30)
        if sample_id == self.late:
            assert self.event.wait(30)
        return self.of.decode(encoded, samples, sample_id)


def test_each_stage_has_a_concurrency_of_its_own(image_tree: Tree) -> None:
    one_by_one = Watched(TRANSFORM, pair=threading.Barrier(2))
    with SpdlLoader(
        samples=image_tree(12), transform=one_by_one, batch_size=4, seed=0, read_concurrency=1, transform_concurrency=2
    ) as loader:
        assert sorted(int(k) for batch in loader.epoch(0) for k in batch.ids) == list(range(12))


@pytest.mark.parametrize("order", ["completion", "input"])
def test_a_late_sample_comes_after_those_that_are_done_unless_the_order_is_that_of_the_input(
    image_tree: Tree, order: str
) -> None:
    samples, late = image_tree(12), int(epoch_order(12, seed=0, epoch=0)[0])
    pipeline = Watched(TRANSFORM, late)
    if order == "input":
        pipeline.event.set()
    with SpdlLoader(samples=samples, transform=pipeline, batch_size=4, seed=0, output_order=order) as loader:
        assert bool(loader.notes) == (order == "completion")
        epoch = loader.epoch(0)
        got = [next(epoch)]
        pipeline.event.set()
        got += epoch
    assert (late in got[0].ids) == (order == "input")
    assert sorted(int(k) for batch in got for k in batch.ids) == list(range(12))


@pytest.mark.parametrize("order", ["completion", "input"])
def test_coroutines_bring_what_threads_bring_and_read_no_more_at_once(
    image_tree: Tree, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = image_tree(12)
    common: dict[str, Any] = {"samples": samples, "transform": TRANSFORM, "batch_size": 12, "seed": 0}
    with SpdlLoader(**common) as loader:
        (by_threads,) = loader.epoch(0)
    at_once: list[int] = []
    most, get = [0], obstore.get_async

    async def counted(store: Any, path: str) -> Any:
        at_once.append(1)
        most[0] = max(most[0], len(at_once))
        await asyncio.sleep(0.05)
        try:
            return await get(store, path)
        finally:
            at_once.pop()

    monkeypatch.setattr(obstore, "get_async", counted)
    with SpdlLoader(**common, acquire="coroutines", read_concurrency=3, output_order=order) as loader:
        for _ in range(2):  # an epoch has an event loop of its own
            (batch,) = loader.epoch(0)
            assert torch.equal(batch.data[batch.ids.argsort()], by_threads.data[by_threads.ids.argsort()])
        assert loader.stats().details["read_count"] == 24
    assert most == [3]


def test_a_file_that_a_coroutine_cannot_read_is_named(image_tree: Tree) -> None:
    samples = image_tree(12)
    samples.path(3).unlink()
    options: dict[str, Any] = {"acquire": "coroutines", "read_concurrency": 2, "batch_size": 4, "seed": 0}
    with (
        SpdlLoader(samples=samples, transform=TRANSFORM, **options) as loader,
        pytest.raises(SampleError, match=rf"sample 3 \({samples.path(3)}\) cannot be read: .*{samples.path(3).name}"),
    ):
        list(loader.epoch(0))


@dataclass(frozen=True)
class Hanging(WrappedPipeline):
    """Images of which one hangs in decoding."""

    def decode(self, encoded: Any, samples: SampleSource, sample_id: int) -> Any:
        if sample_id == 3:
            time.sleep(60)
        return self.of.decode(encoded, samples, sample_id)


@pytest.mark.process
def test_a_sample_that_hangs_in_a_process_is_named_and_the_process_killed(image_tree: Tree) -> None:
    others = psutil.Process().children()
    options: dict[str, Any] = {"executor": "process", "num_threads": 2, "batch_size": 4, "seed": 0}
    loader = SpdlLoader(samples=image_tree(12), transform=Hanging(TRANSFORM), sample_timeout_s=2.0, **options)
    with pytest.raises(SampleTimeoutError, match=r"sample 3 \(.*\) is in decode for .* in worker \d"):
        list(loader.epoch(0))
    left = [child for child in psutil.Process().children() if child not in others]
    assert not [child for child in left if "resource_tracker" not in " ".join(child.cmdline())]


@pytest.mark.process
def test_processes_all_start_before_the_first_sample(image_tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    start = ProcessPoolExecutor._spawn_process  # slowly: the first one is idle when the second one has started
    monkeypatch.setattr(ProcessPoolExecutor, "_spawn_process", lambda pool: (start(pool), time.sleep(3)))
    options: dict[str, Any] = {"executor": "process", "num_threads": 3, "batch_size": 4, "seed": 0}
    with SpdlLoader(samples=image_tree(12), transform=TRANSFORM, **options) as loader:
        assert len(list(loader.epoch(0))) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"acquire": "coroutines"}, "acquire=coroutines: needs read_concurrency"),
        ({"acquire": "coroutines", "read_concurrency": 2, "transform": "own"}, "Watched has a `read` of its own"),
        ({"executor": "process", "decode": "spdl"}, "executor=process: .*use decode=pil"),
        ({"executor": "process", "transform": "own"}, "executor=process: .*cannot be sent to another process"),
    ],
)
def test_stages_that_cannot_be_are_refused_by_name(
    image_tree: Tree, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], message: str
) -> None:
    closed_at_exit: list[object] = []
    monkeypatch.setattr("loaders.shared.threads.Finalize", lambda what, *_, **__: closed_at_exit.append(what))
    transform = Watched(TRANSFORM) if "transform" in options else TRANSFORM
    with pytest.raises(LoaderConfigError, match=message):
        SpdlLoader(samples=image_tree(2), batch_size=2, seed=0, **options | {"transform": transform})
    assert not closed_at_exit, "a loader that was not made has nothing to close"


def test_a_failure_is_raised_and_not_logged_as_well(image_tree: Tree, caplog: pytest.LogCaptureFixture) -> None:
    samples = image_tree(12)
    samples.path(3).write_bytes(b"")
    with (
        caplog.at_level(logging.WARNING),
        SpdlLoader(samples=samples, transform=TRANSFORM, batch_size=4, seed=0) as loader,
    ):
        with pytest.raises(SampleError, match="sample 3 "):
            list(loader.epoch(0))
        samples.path(3).write_bytes(samples.path(4).read_bytes())
        assert sum(len(batch) for batch in loader.epoch(0)) == 12
    assert not caplog.records


def four_inks(encode_image: Callable[..., bytes], *, luma: bool = False, **options: object) -> bytes:
    """A CMYK JPEG; or one that says, as Adobe's programs do, that its inks are stored as luma and chroma."""
    data = bytearray(encode_image(120, 90, mode="CMYK", **options))
    data[data.index(b"Adobe") + 11] = 2 if luma else 0
    return bytes(data)


def test_jpegs_of_four_inks_come_out_as_pil_has_them_among_others_that_ffmpeg_decodes(
    image_tree: Tree, encode_image: Callable[..., bytes]
) -> None:
    samples = image_tree(7)
    samples.path(2).write_bytes(four_inks(encode_image))
    samples.path(5).write_bytes(four_inks(encode_image, luma=True))
    batches = []
    for decode in ("pil", "spdl"):
        with SpdlLoader(samples=samples, transform=TRANSFORM, batch_size=7, seed=0, decode=decode) as loader:
            batches += list(loader.epoch(0))
    by_pil, by_ffmpeg = (batch.data[batch.ids.argsort()] for batch in batches)
    apart = (by_pil - by_ffmpeg).abs().mean((1, 2, 3)) * 58  # grey levels
    assert apart[[2, 5]].max() < 1e-3
    assert apart[[0, 1, 3, 4, 6]].min() > 0.1, "decoded by PIL too"


def test_four_inks_are_told_by_the_frame_header(encode_image: Callable[..., bytes]) -> None:
    plain = four_inks(encode_image)
    assert is_cmyk_jpeg(plain)
    assert is_cmyk_jpeg(memoryview(four_inks(encode_image, progressive=True)))
    assert is_cmyk_jpeg(plain[:2] + b"\xff\xff" + plain[2:]), "fill bytes"
    for other in (encode_image(40, 30), encode_image(40, 30, mode="L"), encode_image(40, 30, format="PNG"), b""):
        assert not is_cmyk_jpeg(other)
    for cut in range(plain.index(b"\xff\xc0") + 9):
        assert not is_cmyk_jpeg(plain[:cut])


def test_its_threads_use_one_core_each_and_leave_the_others_theirs() -> None:
    here = torch.get_num_threads()
    torch.set_num_threads(here)  # which torch remembers for threads to come
    pool = DaemonThreads(1, "test")
    assert pool.submit(torch.get_num_threads).result() == 1
    pool.shutdown()
    assert torch.get_num_threads() == here


def test_a_thread_that_hangs_is_left_behind_and_keeps_nobody_waiting() -> None:
    pool = DaemonThreads(1, "test")
    begun, released = threading.Event(), threading.Event()

    def hang() -> bool:
        begun.set()
        return released.wait()

    hanging = pool.submit(hang)
    begun.wait()
    waiting = pool.submit(print)
    pool.shutdown()
    assert waiting.cancelled()
    with pytest.raises(RuntimeError, match="shut down"):
        pool.submit(print)
    released.set()
    assert hanging.result(5)
