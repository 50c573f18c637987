"""Speech recognition with RNN-T, and the microbenchmarks Speech-3s and Speech-10s that are made of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from harness.errors import CellError, ConfigError
from harness.system.values import check_choice, check_count, check_number

if TYPE_CHECKING:
    import torch

    from loaders.base import Batch
    from loaders.pipeline.speech import SpeechPipeline


_FEATURES: Final = 240
"""80 mel channels of 3 spliced frames, as SpeechPipeline makes them."""
_SECONDS: Final = 0.03
"""Between spliced frames."""
_CHARACTERS_PER_S: Final = 14.0
"""Of speech, about as in LibriSpeech; for made-up batches only."""


@dataclass(frozen=True, slots=True)
class RNNT:
    """Training of RNN-T on speech, character by character, in MLPerf's form and size.

    With `light_s` and `heavy_s` its samples go through LightStep and HeavyStep too: 0.5 s and 3 s or 10 s are the
    workloads Speech-3s and Speech-10s of the MinatoLoader paper (table 1). The batch of 24 is from its table 3.
    """

    batch_size: int = 24
    name: str = "rnnt"
    encoder_size: int = 1024
    """Cells of every layer of the encoder."""
    predictor_size: int = 512
    joint_size: int = 512
    light_s: float | None = None
    """Seconds of LightStep; null for none."""
    heavy_s: float | None = None
    """Seconds of HeavyStep; null for none."""
    heavy_share: float = 0.2
    """Of the samples, that go through HeavyStep: every fifth."""
    heavy_includes_light: bool = False
    """Whether heavy_s is what both steps take together.

    Section 2.2 of the paper adds HeavyStep to LightStep, 3.5 s in all; its table 2 has 3.008 s as 90th percentile
    and 3.017 s as the maximum, so the measured steps took 3 s in all.
    """
    time_scale: float = 1.0
    """Factor on the time of both steps."""
    passing: str = "sleep"
    """How they pass it: sleep, or spin to keep a core busy."""
    typical_s: float = 12.5
    """Speech of a made-up sample in seconds, by which a device is warmed up."""

    def __post_init__(self) -> None:
        for key in ("batch_size", "encoder_size", "predictor_size", "joint_size"):
            check_count(f"workloads.{self.name}.{key}", getattr(self, key))
        for key in ("light_s", "heavy_s", "time_scale", "typical_s"):
            value = getattr(self, key)
            if value is not None or key not in {"light_s", "heavy_s"}:
                check_number(f"workloads.{self.name}.{key}", value)
        check_number(f"workloads.{self.name}.heavy_share", self.heavy_share, maximum=1)
        check_choice(f"workloads.{self.name}.passing", self.passing, ("sleep", "spin"))
        if self.heavy_includes_light and (self.heavy_s or 0.0) < (self.light_s or 0.0):
            raise ConfigError(
                f"workloads.{self.name}.heavy_s={self.heavy_s}: expected light_s={self.light_s} or more, "
                "which it includes (heavy_includes_light)"
            )

    @property
    def input_size(self) -> None:
        """Samples differ in length."""
        return

    @property
    def transform(self) -> SpeechPipeline:
        """Table 1's steps: Pad, SpecAugment, FilterBank, FrameSplicing, PermuteAudio, and the two emulated ones."""
        from loaders.pipeline.speech import FEATURES, SpeechPipeline
        from loaders.pipeline.synthetic_load import HeavyStep, LightStep, Passing

        passing: Passing = "spin" if self.passing == "spin" else "sleep"
        steps = FEATURES
        if self.light_s is not None:
            steps += (LightStep(self.light_s, self.time_scale, passing),)
        if self.heavy_s is not None:
            already_s = (self.light_s or 0.0) if self.heavy_includes_light else 0.0
            steps += (HeavyStep(self.heavy_s - already_s, self.time_scale, passing, share=self.heavy_share),)
        return SpeechPipeline(steps)

    def model(self) -> torch.nn.Module:
        """Return the model with fresh weights, on the CPU."""
        from harness.workloads.transducer import Transducer
        from loaders.pipeline.speech import SYMBOLS

        return Transducer(
            features=_FEATURES,
            symbols=SYMBOLS,
            encoder_size=self.encoder_size,
            predictor_size=self.predictor_size,
            joint_size=self.joint_size,
        )

    def loss(self, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        """Return the RNN-T loss per character of the batch's transcripts."""
        from harness.workloads.transducer import Transducer, rnnt_loss

        lengths, characters = batch.extra["lengths"], batch.extra["label_lengths"]
        logits = model(batch.data, batch.labels, lengths)
        losses = rnnt_loss(logits, batch.labels, Transducer.steps(lengths), characters)
        return losses.sum() / characters.sum().clamp(min=1)

    def check(self, batch: Batch) -> None:
        """Raise CellError for features of another width, a character beyond the alphabet, and a missing length."""
        from loaders.pipeline.speech import SYMBOLS

        if batch.data.ndim != 3 or batch.data.shape[2] != _FEATURES:
            raise CellError(
                f"workload {self.name}: a batch has shape {tuple(batch.data.shape)}, expected (n, T, {_FEATURES}); "
                "take a dataset of speech, for example dataset=librispeech_small"
            )
        for name in ("lengths", "label_lengths"):
            if name not in batch.extra:
                raise CellError(f"workload {self.name}: a batch has no extra {name!r}; its pipeline has to add it")
        if int(batch.extra["lengths"].min()) < 1:
            raise CellError(f"workload {self.name}: a sample has no frame; leave out recordings without sound")
        highest = int(batch.labels.max()) if batch.labels.numel() else 0
        if highest >= SYMBOLS:
            raise CellError(f"workload {self.name}: a character has label {highest}, expected 0 to {SYMBOLS - 1}")

    def example(self) -> Batch:
        """Return noise with random characters."""
        import numpy as np
        import torch

        from loaders.base import Batch
        from loaders.pipeline.speech import SYMBOLS

        rng = torch.Generator().manual_seed(0)
        frames = max(1, round(self.typical_s / _SECONDS))
        characters = max(1, round(self.typical_s * _CHARACTERS_PER_S))
        n = self.batch_size
        return Batch(
            np.arange(n),
            torch.randn((n, frames, _FEATURES), generator=rng),
            torch.randint(1, SYMBOLS, (n, characters), generator=rng),
            0,
            {"lengths": torch.full((n,), frames), "label_lengths": torch.full((n,), characters)},
        )
