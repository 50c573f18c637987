"""The pipeline of volumes as a graph of DALI operators: flips, brightness and noise of cubes that Python cut out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from nvidia.dali import fn

from loaders.dali.plan import DaliPlan, DataNode, Fed, NoOperatorsError, scalar
from loaders.pipeline import Item, Tensors, Transform, WrappedPipeline
from loaders.pipeline.augment3d import Cast, GaussianNoise, RandomBrightness, RandomFlip
from loaders.pipeline.crop3d import RandomCrop
from loaders.pipeline.segmentation import SegmentationPipeline

_NO_NOISE: Final = np.zeros((1, 1, 1, 1), np.float32)


class SegmentationPlan(DaliPlan):
    """RandomFlip, RandomBrightness, GaussianNoise and collation in DALI; voxels equal the pipeline's own, bit by bit.

    Cast has nothing to do: DALI is fed float32 and uint8, as the pipeline decodes to.
    """

    note = (
        "DALI's operators run RandomFlip, RandomBrightness, GaussianNoise and collation; Python operators run reading "
        "and decoding (DALI has none for NIfTI, and .npy files are mapped, not copied), RandomCrop (DALI has none for "
        "connected parts of labels, and once the cube is cut the map of the volume can go) and all random numbers"
    )

    conditional = True
    layouts: Mapping[str, str] = {"volume": "CDHW", "label": "CDHW"}

    def __init__(self, pipeline: SegmentationPipeline) -> None:
        """Run this pipeline; raises NoOperatorsError where a step of it is not the project's own."""
        known_steps = (RandomCrop, RandomFlip, RandomBrightness, GaussianNoise, Cast)
        for step, known in zip(pipeline.transforms, known_steps, strict=True):
            if type(step) is not known:
                raise NoOperatorsError(f"its step {step.name} is none of this project's")
        self.ahead = _SegmentationAhead(pipeline)

    def graph(self, fed: Mapping[str, DataNode], device: str) -> Sequence[DataNode]:
        """Return volumes, float32, and labels, uint8, both (1, edge, edge, edge) a sample."""
        volume, label, mirrored = fed["volume"], fed["label"], fed["mirrored"]
        factor, noise = fed["factor"], fed["noise"]
        if device == "cuda":
            volume, label = volume.gpu(), label.gpu()
        # Most samples pass most operators by. Noise has to: DALI 2.4 reads beyond the end of an operand that one
        # sample of a batch broadcasts and another does not.
        if fed["flipped"]:
            volume = fn.flip(volume, depthwise=mirrored[0], vertical=mirrored[1], horizontal=mirrored[2])
            label = fn.flip(label, depthwise=mirrored[0], vertical=mirrored[1], horizontal=mirrored[2])
        if fed["brightened"]:
            volume = volume * (factor.gpu() if device == "cuda" else factor)
        if fed["noisy"]:
            volume = volume + (noise.gpu() if device == "cuda" else noise)
        return volume, label

    def tensors(self, outputs: Sequence[torch.Tensor], collated: Tensors) -> Tensors:
        """Return the batch."""
        return Tensors(outputs[0], outputs[1], {})


@dataclass(frozen=True)
class _SegmentationAhead(WrappedPipeline):
    of: SegmentationPipeline

    @property
    def transforms(self) -> tuple[Transform, ...]:
        return self.of.crop, _Draws(self.of)

    def collate(self, items: Sequence[Item]) -> Tensors:
        names = ("label", "mirrored", "flipped", "factor", "brightened", "noise", "noisy")
        drawn = {name: [item.target[name] for item in items] for name in names}
        return Fed.of({"volume": [item.data for item in items], **drawn})


@dataclass(frozen=True, slots=True)
class _Draws:
    """Draws the random numbers of a sample, under the names of the graph's inputs."""

    of: SegmentationPipeline
    name: str = "draws"

    def __call__(self, item: Item) -> Item:
        axes, factor = self.of.flip.axes(item), self.of.brightness.factor(item)
        noise = self.of.noise.noise(item, item.data.shape)
        item.target |= {
            "mirrored": np.array([axis in axes for axis in (1, 2, 3)], np.int32),
            "flipped": scalar(bool(axes), np.bool_),
            "factor": scalar(factor, np.float32),
            "brightened": scalar(factor != 1, np.bool_),
            "noise": _NO_NOISE if noise is None else noise,
            "noisy": scalar(noise is not None, np.bool_),
        }
        return item
