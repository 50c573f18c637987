"""The steps of a crop of a volume: RandomFlip, RandomBrightness, GaussianNoise, Cast.

Probabilities and ranges are those of MLPerf Training's image segmentation reference (pytorch_loader.py), the order is
that of Table 1 of the MinatoLoader paper.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from loaders.pipeline import Item


@dataclass(frozen=True, slots=True)
class RandomFlip:
    """Mirrors a volume and its labels along depth, height and width, each by itself."""

    probability: float = 1 / 3
    """Of every axis."""
    name: str = "RandomFlip"

    def __call__(self, item: Item) -> Item:
        """Return the item with both of its arrays mirrored alike."""
        if axes := self.axes(item):
            item.data = np.flip(item.data, axes).copy()
            item.target["label"] = np.flip(item.target["label"], axes).copy()
        return item

    def axes(self, item: Item) -> tuple[int, ...]:
        """Return the axes of (1, D, H, W) that are mirrored."""
        drawn = item.generator(self.name).random(3) < self.probability
        return tuple(axis for axis, mirrored in enumerate(drawn.tolist(), 1) if mirrored)


@dataclass(frozen=True, slots=True)
class RandomBrightness:
    """Multiplies some of the volumes by a factor.

    The reference draws u from 0.7 to 1.3 and multiplies by 1 + u, hence `min_factor` and `max_factor`.
    """

    min_factor: float = 1.7
    max_factor: float = 2.3
    probability: float = 0.1
    name: str = "RandomBrightness"

    def __call__(self, item: Item) -> Item:
        """Return the item with its volume multiplied in place."""
        factor = self.factor(item)
        if factor != 1:
            item.data *= np.float32(factor)
        return item

    def factor(self, item: Item) -> float:
        """Return what the volume is multiplied by, 1.0 where it is left as it is."""
        rng = item.generator(self.name)
        return float(rng.uniform(self.min_factor, self.max_factor)) if rng.random() < self.probability else 1.0


@dataclass(frozen=True, slots=True)
class GaussianNoise:
    """Adds noise of zero mean to some of the volumes, its deviation drawn from 0 to `max_std`."""

    max_std: float = 0.1
    """In units of the normalised volume."""
    probability: float = 0.1
    name: str = "GaussianNoise"

    def __call__(self, item: Item) -> Item:
        """Return the item with noise added to its volume in place."""
        noise = self.noise(item, item.data.shape)
        if noise is not None:
            item.data += noise
        return item

    def noise(self, item: Item, shape: tuple[int, ...]) -> npt.NDArray[np.float32] | None:
        """Return the noise of one sample as float32 of `shape`, None where there is none."""
        rng = item.generator(self.name)
        if rng.random() >= self.probability:
            return None
        deviation = np.float32(rng.uniform(0, self.max_std))
        noise = rng.standard_normal(shape, dtype=np.float32)
        noise *= deviation
        return noise


@dataclass(frozen=True, slots=True)
class Cast:
    """Makes tensors: the volume float32, its labels uint8."""

    name: str = "Cast"

    def __call__(self, item: Item) -> Item:
        """Return the item with tensors in the place of its arrays, whose memory they share."""
        item.data = torch.from_numpy(item.data.astype(np.float32, copy=False))
        item.target["label"] = torch.from_numpy(item.target["label"].astype(np.uint8, copy=False))
        return item
