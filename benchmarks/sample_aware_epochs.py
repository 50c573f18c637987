"""Epochs over steps that sleep: the sample-aware loader, PyTorch's with as many workers, and bare processes.

Sleeps are exact in all of them, as Linux allows: its default slack of 50 us a sleep would be a percent or more of a
sample of four short steps, and real transforms have none.
"""

from __future__ import annotations

import multiprocessing
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from joulefeed.scheduling import exact_timers
from loaders import SampleAwareDataLoader
from loaders.pipeline.synthetic_load import HeavyStep, LightStep

WORKERS = 12
"""As the paper has them (section 5.1)."""
BATCH = 24
_PATIENCE_S = 120
"""For bare processes to start, and to end an epoch."""


@dataclass(frozen=True)
class Nap:
    """A transform that sleeps as long as a step says for the sample of this index."""

    step: LightStep
    name: str

    def __call__(self, index: int) -> int:
        """Return the index, after the time has passed."""
        seconds = self.step.seconds_for(index)
        if seconds > 0:
            with exact_timers():
                time.sleep(seconds)
        return index


@dataclass(frozen=True)
class Part:
    """A share of what each sample of a table takes."""

    seconds: tuple[float, ...]
    share: float

    def seconds_for(self, sample_id: int) -> float:
        """Return the time of this part, in seconds."""
        return self.seconds[sample_id % len(self.seconds)] * self.share


class Indices(Dataset[int]):
    """Gives the index, after transforms where there are some."""

    def __init__(self, count: int, transforms: Sequence[Nap] = ()) -> None:
        self._count, self._transforms = count, transforms

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> int:
        for transform in self._transforms:
            index = transform(index)
        return index


def speech(heavy_s: float, scale: float, share: float = 0.2) -> list[Nap]:
    """Speech as the paper has it: a light step for all, a heavy one for some, and the transforms of the features."""
    light, heavy, last = LightStep(0.5, scale), HeavyStep(heavy_s, scale, share=share), LightStep(0.05, scale)
    return [Nap(light, "LightStep"), Nap(heavy, "HeavyStep"), Nap(last, "Features")]


def unet(scale: float) -> list[Nap]:
    """3D-UNet with the spread of the paper's table 2, the crop two thirds of it."""
    rng = np.random.default_rng(0)
    seconds = tuple(np.clip(rng.gamma(6.4, 0.5 / 6.4, 1024), 0.01, 2.23) * scale)
    shares = {"RandomCrop": 0.68, "RandomFlip": 0.05, "RandomBrightness": 0.17, "GaussianNoise": 0.1}
    return [Nap(Part(seconds, share), name) for name, share in shares.items()]


def bound_s(transforms: Sequence[Nap], count: int, workers: int) -> float:
    """Return what `count` samples take if no worker ever waits."""
    return sum(nap.step.seconds_for(k) for nap in transforms for k in range(count)) / workers


@dataclass(frozen=True, slots=True)
class Epoch:
    """What an epoch took."""

    seconds: float
    first_s: float
    work_s: float
    """That the transforms took in all workers, as they measured it; 0 where nobody did."""


def bare_epoch_s(transforms: Sequence[Nap], count: int, workers: int = WORKERS) -> float:
    """Return what an epoch takes bare processes that take the next sample from a counter and load nothing.

    They share no more than that, so none waits while there is work.
    """
    context = multiprocessing.get_context("fork")
    taken, gate = context.Value("q", 0), context.Barrier(workers + 1)
    order = random.Random(0).sample(range(count), count)
    arguments = (transforms, order, taken, gate)
    processes = [context.Process(target=_take_samples, args=arguments, daemon=True) for _ in range(workers)]
    for process in processes:
        process.start()
    gate.wait(_PATIENCE_S)
    began = time.perf_counter()
    gate.wait(_PATIENCE_S)
    took_s = time.perf_counter() - began
    for process in processes:
        process.join()
    return took_s


def _take_samples(transforms: Sequence[Nap], order: Sequence[int], taken: Any, gate: Any) -> None:
    gate.wait(_PATIENCE_S)
    while True:
        with taken.get_lock():
            number = taken.value
            taken.value += 1
        if number >= len(order):
            break
        for transform in transforms:
            transform(order[number])
    gate.wait(_PATIENCE_S)


class Arm:
    """A loader whose workers are there, for they have run one epoch already; of the sample-aware one, its profile too.

    With `most_workers` the sample-aware loader's scheduler changes their number.
    """

    def __init__(
        self,
        ours: bool,
        transforms: Sequence[Nap],
        count: int,
        *,
        workers: int = WORKERS,
        most_workers: int | None = None,
    ) -> None:
        self._count, self._start = count, workers
        options: dict[str, Any] = {
            "batch_size": BATCH,
            "shuffle": True,
            "num_workers": workers,
            "persistent_workers": True,
            "generator": torch.Generator().manual_seed(0),
        }
        self._loader: Any = (
            SampleAwareDataLoader(Indices(count), transforms=transforms, max_workers=most_workers, **options)
            if ours
            else DataLoader(Indices(count, transforms), **options)
        )
        self.epoch()

    @property
    def workers(self) -> int:
        """Those that there are now."""
        changes = getattr(self._loader, "workers_over_time", ())
        return int(changes[-1][1]) if changes else self._start

    def epoch(self) -> Epoch:
        """EpochState one; every sample comes once."""
        before_s, began = self._worked_s(), time.perf_counter()
        batches = iter(self._loader)
        seen = next(batches).tolist()
        first_s = time.perf_counter() - began
        for batch in batches:
            seen += batch.tolist()
        seconds = time.perf_counter() - began
        assert sorted(seen) == list(range(self._count)), "a sample is missing or came twice"
        return Epoch(seconds, first_s, self._worked_s() - before_s)

    def _worked_s(self) -> float:
        """Return what all stages of all samples took so far."""
        figures = self._loader.stats() if isinstance(self._loader, SampleAwareDataLoader) else {}
        stages = [name.removesuffix("_mean_s") for name in figures if name.endswith("_mean_s")]
        return sum(figures[f"{stage}_count"] * figures[f"{stage}_mean_s"] for stage in stages)
