"""What others have published of accelerators: how long a training step takes, and what a board draws."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class PublishedStep:
    """Duration of a training step."""

    seconds: float
    batch_size: int
    input_size: int | None
    """Edge of a sample in pixels or voxels; None where samples have none."""
    citation: str
    unit: str = "pixels"
    """Of the edge."""

    @property
    def seconds_per_sample(self) -> float:
        """Duration by which a batch of another size is scaled, in seconds."""
        return self.seconds / self.batch_size


@dataclass(frozen=True, slots=True)
class BoardPower:
    """What a board draws, in watts."""

    busy_w: float
    """While it trains; the rated power, so an upper bound."""
    idle_w: float
    """While it waits."""
    citation: str


MODELS: Final[Mapping[str, str]] = {"a100": "A100", "h100": "H100", "textbook": "the textbook's accelerator"}
"""Accelerators that can be emulated, and how outputs name them."""

STEPS: Final[Mapping[tuple[str, str], PublishedStep]] = {
    ("resnet50", "a100"): PublishedStep(
        0.435, 400, 224, "MLPerf Storage, resnet50_a100.yaml: computation_time 0.435 s, batch_size 400"
    ),
    ("resnet50", "h100"): PublishedStep(
        0.224, 400, 224, "MLPerf Storage, resnet50_h100.yaml: computation_time 0.224 s, batch_size 400"
    ),
    ("unet3d", "a100"): PublishedStep(
        0.636, 7, 128, "MLPerf Storage, unet3d_a100.yaml: computation_time 0.636 s, batch_size 7", "voxels"
    ),
    ("unet3d", "h100"): PublishedStep(
        0.323, 7, 128, "MLPerf Storage, unet3d_h100.yaml: computation_time 0.323 s, batch_size 7", "voxels"
    ),
    ("textbook", "textbook"): PublishedStep(
        0.010, 1, None, "a textbook's section on the DataLoader bottleneck, Code 8.5.1: COMPUTE_MS = 10.0"
    ),
}
"""By workload and accelerator."""

BOARDS: Final[Mapping[str, BoardPower]] = {
    "a100": BoardPower(
        400.0,
        50.0,
        "busy: 400 W, the A100 SXM4's rated power, so an upper bound; idle: 50 W, a round figure within the "
        "42 to 62 W of published nvidia-smi listings, without a CUDA context",
    ),
    "h100": BoardPower(
        700.0,
        70.0,
        "busy: 700 W, the H100 SXM5's rated power, so an upper bound; idle: 70 W, a round figure within the "
        "68 to 74 W of published nvidia-smi listings, without a CUDA context",
    ),
}
"""By accelerator."""
