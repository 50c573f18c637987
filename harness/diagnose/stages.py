"""Times every stage of preparing a batch, in this process and without a loader around it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import torch

from harness.diagnose.diagnosis import KINDS, Stage
from harness.diagnose.sweep import Tick
from loaders.base import Batch, Samples
from loaders.pipeline import Item, Pipeline, StageTimes, Tensors, load_item
from loaders.pipeline.image import epoch_order

_MOST_SAMPLES: Final = 256


@dataclass(frozen=True, slots=True)
class StageReport:
    """The stages, and a batch that went through them."""

    stages: tuple[Stage, ...]
    batch: Batch
    """A whole batch, on the device."""


@dataclass(slots=True)
class _Pass:
    """One pass over the samples: seconds of each stage, by sample or by batch."""

    samples: dict[str, list[float]] = field(default_factory=dict)
    batches: dict[str, list[float]] = field(default_factory=dict)
    """Seconds per sample of the batch."""
    count: int = 0

    def mean_s(self, stage: str) -> float:
        """Mean seconds of a stage per sample."""
        return float(np.mean((self.samples if stage in self.samples else self.batches)[stage]))


def time_stages(
    pipeline: Pipeline,
    samples: Samples,
    *,
    batch_size: int,
    seed: int,
    device: str,
    budget_s: float,
    cached: bool,
    tick: Tick,
) -> StageReport:
    """Time the stages, as training meets them from its second epoch on.

    Args:
        pipeline: its stages are timed.
        samples: the dataset.
        batch_size: samples of a batch.
        seed: of the order of samples, and of augmentation.
        device: where batches are wanted: cuda or cpu.
        budget_s: how long it may take, s; at least one batch is timed.
        cached: whether memory holds all files. They are read once before they are timed; else the page cache forgets
            them before.
        tick: called with how many samples are done, and of how many.

    Raises:
        SampleError: a sample cannot be read.
    """
    order = epoch_order(len(samples), seed=seed, epoch=0).tolist()
    # A dataset smaller than a batch still fills one.
    chosen = (order * -(-batch_size // len(order)))[: max(batch_size, _MOST_SAMPLES)]
    with _one_thread():
        if cached:
            first, _ = _run(pipeline, samples, chosen, batch_size, seed, device, budget_s / 2, tick)
            chosen = chosen[: first.count]
        else:
            _forget_files(samples, chosen)
        timed, batch = _run(pipeline, samples, chosen, batch_size, seed, device, budget_s / 2, tick)
    stages = tuple(_make_stage(name, timed, batch_size) for name in (*timed.samples, *timed.batches))
    return StageReport(stages, batch)


def _forget_files(samples: Samples, ids: Sequence[int]) -> None:
    """Let the page cache forget the files of some samples."""
    beside = [column for name, column in samples.columns.items() if name.endswith("path")]
    for sample_id in ids:
        others = [column[sample_id].as_py() for column in beside]
        for path in (samples.path(sample_id), *(samples.root / other for other in others if other)):
            with suppress(OSError), path.open("rb") as file:  # the pass that follows names the sample
                os.fdatasync(file.fileno())  # only pages that are on storage can be forgotten
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _run(
    pipeline: Pipeline,
    samples: Samples,
    chosen: Sequence[int],
    batch_size: int,
    seed: int,
    device: str,
    budget_s: float,
    tick: Tick,
) -> tuple[_Pass, Batch]:
    found, first = _Pass(), None
    deadline = time.monotonic() + budget_s
    for start in range(0, len(chosen), batch_size):
        items: list[Item] = []
        for sample_id in chosen[start : start + batch_size]:
            times = StageTimes()
            items.append(load_item(pipeline, samples, sample_id, seed=seed, epoch=0, times=times))
            for stage, seconds in times.seconds().items():
                found.samples.setdefault(stage, []).append(seconds)
            found.count += 1
            tick(found.count, len(chosen))
            if time.monotonic() > deadline and first is not None:
                break
        began = time.perf_counter_ns()
        tensors = pipeline.collate(items)
        found.batches.setdefault("collate", []).append((time.perf_counter_ns() - began) * 1e-9 / len(items))
        ids = np.array([item.id for item in items], np.int64)
        del items
        moved, transfer_s = _transferred(tensors, device)
        if transfer_s is not None:
            found.batches.setdefault("transfer", []).append(transfer_s / len(ids))
        if first is None:
            first = Batch(ids, moved.data, moved.labels, int(samples.sizes[ids].sum()), moved.extra)
        if time.monotonic() > deadline:
            break
    assert first is not None
    return found, first


def _transferred(tensors: Tensors, device: str) -> tuple[Tensors, float | None]:
    """Copy tensors to the device from page-locked memory, as the loaders do; None s where they stay where they are."""
    if device == "cpu":
        return tensors, None
    pinned = tensors.each(torch.Tensor.pin_memory)
    torch.cuda.synchronize()
    began = time.perf_counter_ns()
    moved = pinned.each(lambda tensor: tensor.to(device, non_blocking=True))
    torch.cuda.synchronize()
    return moved, (time.perf_counter_ns() - began) * 1e-9


def _make_stage(name: str, timed: _Pass, batch_size: int) -> Stage:
    kind = name if name in KINDS else "augment"
    by_sample = timed.samples.get(name)
    p50, p99 = (None, None) if by_sample is None else (float(q) for q in np.percentile(by_sample, (50, 99)))
    return Stage(name, kind, timed.mean_s(name) * batch_size, p50, p99)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Compute as a loader's worker does, which has one thread of torch's."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
