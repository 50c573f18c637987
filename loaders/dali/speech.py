"""The pipeline of speech recognition as a graph of DALI operators, in the order in which its steps stand."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import soundfile
import torch
from nvidia.dali import fn, types

from loaders.base import SampleSource
from loaders.dali.audio import FEED, parts_of
from loaders.dali.plan import DaliPlan, DataNode, Fed
from loaders.pipeline import Item, Target, Tensors, Transform, WrappedPipeline
from loaders.pipeline.speech import SpeechPipeline, waveform
from loaders.pipeline.synthetic_load import LightStep

MAX_DIFFERENCE: Final = 1e-3
"""Most that a feature is off, in deviations of its channel: DALI has Fourier transforms and sums of its own, whose
roundings in float32 a logarithm makes larger where there is little power. 1e-5 to 1e-4 are usual; a channel that hardly
changes, such as one of two frames, is off by most."""

_ENCODED: Final = "encoded"
_NO_FEATURES: Final = torch.empty(0, 1)


class SpeechPlan(DaliPlan):
    """Decoding and every step in DALI, but for those that only pass time; lengths, masks and labels in Python."""

    decodes = True

    def __init__(self, pipeline: SpeechPipeline) -> None:
        """Run this pipeline; raises NoOperatorsError for steps, or an order of them, that there is no graph of."""
        self._parts, waits = parts_of(pipeline.transforms)
        self.ahead = _SpeechAhead(pipeline, (*self._parts, *waits))
        steps = ", ".join(part.name for part in self._parts)
        others = "".join(f", {step.name} (it changes nothing of a sample, so it may stand before)" for step in waits)
        self.note = (
            f"DALI's operators run decoding, {steps} and collation: features differ by 1e-4 deviations, by "
            f"{MAX_DIFFERENCE:g} at most, which is rounding; Python operators run reading, transcripts (DALI has none "
            f"for text){others} and all random numbers"
        )

    def graph(self, fed: Mapping[str, DataNode], device: str) -> Sequence[DataNode]:
        """Return features, float32 of shape (T, F), padded to the batch's longest."""
        data, _ = fn.decoders.audio(fed[_ENCODED], dtype=types.FLOAT, downmix=True)
        if device == "cuda":
            data = data.gpu()
        for part in self._parts:
            data = part.graph(data, fed, device)
        return [fn.pad(data, axes=(0,))]


def scaled(pipeline: SpeechPipeline, scale: float) -> tuple[SpeechPipeline, tuple[str, ...]]:
    """Return a pipeline whose LightStep and HeavyStep take `scale` times as long, and the notes that say so.

    MinatoLoader's authors give DALI a tenth of both, for its other steps of speech were ten times as fast as
    PyTorch's on their GPU (section 5.1).
    """
    timed = [step.name for step in pipeline.transforms if isinstance(step, LightStep)]
    if not timed or scale == 1:
        return pipeline, ()
    steps = [
        replace(step, time_scale=step.time_scale * scale) if isinstance(step, LightStep) else step
        for step in pipeline.transforms
    ]
    note = f"{' and '.join(timed)} take {scale:g} times the time that they take through the other loaders"
    return replace(pipeline, transforms=tuple(steps)), (note,)


@dataclass(frozen=True)
class _SpeechAhead(WrappedPipeline):
    of: SpeechPipeline
    steps: tuple[Transform, ...]

    @property
    def transforms(self) -> tuple[Transform, ...]:
        return self.steps

    def decode(self, encoded: bytes | memoryview, samples: SampleSource, sample_id: int) -> tuple[torch.Tensor, Target]:
        labels = self.of.labels(samples, sample_id)
        count = _count(encoded, self.of.sample_rate)
        feed = {_ENCODED: np.frombuffer(encoded, np.uint8)}
        target = {"labels": labels, "samples": count, "step": 1, "time": 0, FEED: feed}
        return torch.empty(count, device="meta"), target

    def collate(self, items: Sequence[Item]) -> Tensors:
        tensors = self.of.collate([replace(item, data=_NO_FEATURES) for item in items])
        feed = {name: [item.target[FEED][name] for item in items] for name in items[0].target[FEED]}
        return Fed.of(feed, tensors.labels, tensors.extra)


def _count(encoded: bytes | memoryview, sample_rate: int) -> int:
    """Return how many samples a sound has by its header; raises UndecodableError for one that cannot be taken."""
    try:
        with soundfile.SoundFile(io.BytesIO(encoded)) as file:
            if file.channels == 1 and file.samplerate == sample_rate and file.frames > 0:
                return int(file.frames)
    except (soundfile.SoundFileError, RuntimeError):
        pass
    # Says what is wrong with it.
    return len(waveform(encoded, sample_rate))
