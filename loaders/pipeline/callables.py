"""Any callable as a pipeline: it takes the decoded sample, and what it returns is the sample's row of the batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import torch

from joulefeed.npy import load_npy
from loaders.base import SampleSource
from loaders.errors import LoaderConfigError
from loaders.pipeline import ClassPipeline, Data, Item, Pipeline, Target, Transform, UndecodableError, stage_name
from loaders.pipeline.image import decode

AnyTransform: TypeAlias = Pipeline | Callable[[Data], Data]
"""A pipeline, or a callable from a decoded sample to a tensor, array or number: torchvision's Compose, a function."""

_NPY: Final = b"\x93NUMPY"


def as_pipeline(transform: AnyTransform) -> Pipeline:
    """Return a pipeline, or a callable as a pipeline of one step; raise LoaderConfigError for other values."""
    if isinstance(transform, Pipeline):
        return transform
    if callable(transform):
        return CallablePipeline(transform)
    raise LoaderConfigError(
        f"transform={transform!r}: expected a pipeline (with transforms, read, decode and collate), or a callable that "
        "takes a decoded sample, such as torchvision's Compose"
    )


@dataclass(frozen=True, slots=True)
class CallablePipeline(ClassPipeline):
    """Decodes a sample, calls a function with it, and stacks what comes of it.

    Images are RGB images of PIL, `.npy` files NumPy arrays. The labels are the samples', -1 where there is none. Random
    numbers that the callable draws are the process's: unlike a pipeline's they do not follow from the loader's seed.
    """

    of: Callable[[Data], Data]

    @property
    def transforms(self) -> tuple[Transform, ...]:
        """The callable as the only step."""
        return (_CallableStep(self.of, stage_name(self.of)),)

    def decode(self, encoded: bytes | memoryview, samples: SampleSource, sample_id: int) -> tuple[Data, Target]:
        """Return the image or array, and the label; raises UndecodableError."""
        target = {"label": int(samples.labels[sample_id])}
        if bytes(encoded[: len(_NPY)]) == _NPY:
            try:
                return load_npy(encoded), target
            except (ValueError, EOFError) as error:
                raise UndecodableError(f"not a whole array: {error}") from error
        try:
            return decode(encoded), target
        except UndecodableError as error:
            raise UndecodableError(
                f"{error}; a callable takes images and .npy arrays, a Pipeline whatever else"
            ) from error


@dataclass(frozen=True, slots=True)
class _CallableStep:
    of: Callable[[Data], Data]
    name: str

    def __call__(self, item: Item) -> Item:
        made = self.of(item.data)
        if not isinstance(made, torch.Tensor | np.ndarray | np.number | int | float):
            raise TypeError(f"it returned a {type(made).__name__}, expected a tensor, an array or a number")
        item.data = made
        return item
