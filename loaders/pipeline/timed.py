"""A pipeline that reads samples and takes a given time for each, or none, and does nothing to it."""

from __future__ import annotations

import multiprocessing
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from loaders.base import SampleSource
from loaders.pipeline import ClassPipeline, Item, Target, Transform


@dataclass(frozen=True, slots=True)
class TimedPipeline(ClassPipeline):
    """Reads a sample's file, sleeps, and yields the file's length; for pipelines whose times are to be known exactly.

    Data are float32 of shape (n, 1), the files' lengths in MB; labels are int64 of shape (n,).
    """

    sample_s: float
    """Seconds that every sample sleeps; 0 reads alone."""
    at_once: int | None = None
    """How many samples may sleep at a time in all workers together, as if they held a shared resource; None for all."""
    steps: tuple[Transform, ...] = ()
    """Steps after the sleep, such as those of `loaders.pipeline.synthetic_load`."""
    slots: Any = field(default=None, compare=False, repr=False)
    """Held while a sample sleeps; made here, and inherited by the workers."""

    def __post_init__(self) -> None:
        if not self.sample_s >= 0:
            raise ValueError(f"transform.sample_s={self.sample_s}: expected 0 seconds or more")
        if self.at_once is not None and self.at_once < 1:
            raise ValueError(f"transform.at_once={self.at_once}: expected 1 or more, or null for any number")
        if self.at_once is not None and self.slots is None:
            object.__setattr__(self, "slots", multiprocessing.BoundedSemaphore(self.at_once))

    @property
    def transforms(self) -> tuple[Transform, ...]:
        """The sleep, if there is one, and the other steps."""
        return (*((_Sleep(self),) if self.sample_s else ()), *self.steps)

    def decode(self, encoded: bytes | memoryview, samples: SampleSource, sample_id: int) -> tuple[torch.Tensor, Target]:
        """Return the file's length, and the sample's label."""
        return torch.tensor([len(encoded) / 1e6]), {"label": int(samples.labels[sample_id])}


@dataclass(frozen=True, slots=True)
class _Sleep:
    of: TimedPipeline
    name: str = "Sleep"
    only_waits: ClassVar[bool] = True

    def __call__(self, item: Item) -> Item:
        slots: AbstractContextManager[Any] = nullcontext() if self.of.slots is None else self.of.slots
        with slots:
            time.sleep(self.of.sample_s)
        return item
