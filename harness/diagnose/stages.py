"""Times every stage of preparing a batch, in this process and without a loader around it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import torch

from harness.diagnose.diagnosis import Stage
from harness.diagnose.sweep import Tick
from loaders.base import Batch, Samples
from loaders.pipeline import Item, Pipeline, StageTimes, Tensors, load_item
from loaders.pipeline.image import epoch_order

_MOST_SAMPLES: Final = 256
_COLD_MATTERS: Final = 0.05
"""A cold pass that is slower by less than this share of the warm one shows noise."""


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
    pipeline: Pipeline, samples: Samples, *, batch_size: int, seed: int, device: str, budget_s: float, tick: Tick
) -> StageReport:
    """Time the stages twice: with the files on storage alone, then with the files in the page cache.

    Each pass takes up to half of `budget_s`, and at least one batch; raises SampleError.
    """
    order = epoch_order(len(samples), seed=seed, epoch=0).tolist()
    # A dataset smaller than a batch still fills one.
    chosen = (order * -(-batch_size // len(order)))[: max(batch_size, _MOST_SAMPLES)]
    forget(samples, chosen)
    with _one_thread():
        cold, _ = _run(pipeline, samples, chosen, batch_size, seed, device, budget_s / 2, tick)
        warm, batch = _run(pipeline, samples, chosen[: cold.count], batch_size, seed, device, budget_s / 2, tick)
    names = [*warm.samples, *warm.batches]
    total = sum(warm.mean_s(name) for name in names)
    matters = sum(cold.mean_s(name) for name in names) > (1 + _COLD_MATTERS) * total
    stages = tuple(_stage(name, warm, cold if matters else None, batch_size) for name in names)
    return StageReport(stages, batch)


def forget(samples: Samples, ids: Sequence[int]) -> None:
    """Let the page cache forget the files of some samples."""
    beside = [column for name, column in samples.columns.items() if name.endswith("path")]
    for sample_id in ids:
        others = [column[sample_id].as_py() for column in beside]
        for path in (samples.path(sample_id), *(samples.root / other for other in others if other)):
            _forget(path)


def _forget(path: Path) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return  # the pass that follows names the sample
    try:
        os.fdatasync(descriptor)  # only pages that are on storage can be forgotten
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


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


def _stage(name: str, warm: _Pass, cold: _Pass | None, batch_size: int) -> Stage:
    kind = name if name in {"read", "decode", "collate", "transfer"} else "augment"
    by_sample = warm.samples.get(name)
    p50, p99 = (None, None) if by_sample is None else (float(q) for q in np.percentile(by_sample, (50, 99)))
    cold_s = None if cold is None else cold.mean_s(name) * batch_size
    return Stage(name, kind, warm.mean_s(name) * batch_size, cold_s, p50, p99)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Compute as a loader's worker does, which has one thread of torch's."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
