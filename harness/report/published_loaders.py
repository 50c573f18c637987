"""What the MinatoLoader and SPDL papers report of loaders, as far as their text gives numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

__all__ = ["MINATO", "MINATO_FIG2", "SPDL", "SPDL_FIRST_BATCH_S", "SPDL_PEAK", "WORK", "WorkTimes"]

MINATO: Final = "Nouaji et al., MinatoLoader, EuroSys 2026"
SPDL: Final = "Hira et al., SPDL, 2025"


@dataclass(frozen=True, slots=True)
class WorkTimes:
    """Preprocessing times of a workload's samples, in ms."""

    mean: float
    median: float
    p75: float
    p90: float
    low: float
    high: float
    std: float


WORK: Final[Mapping[str, WorkTimes]] = {
    "mask_rcnn": WorkTimes(31, 28, 30, 35, 11, 176, 19),
    "unet3d": WorkTimes(500, 470, 630, 750, 10, 2230, 197),
    "speech_3s": WorkTimes(998, 508, 509, 3008, 502, 3017, 992),
    "speech_10s": WorkTimes(2351, 508, 509, 10008, 502, 10014, 3757),
}
"""MinatoLoader, Table 2, by workload."""

MINATO_FIG2: Final[Mapping[str, tuple[float, float, float]]] = {
    "unet3d": (500.0, 10.0, 2500.0),
    "mask_rcnn": (35.0, 10.0, 200.0),
}
"""MinatoLoader, figure 2 and section 3.1: mean and range of preprocessing times in ms, by workload."""

SPDL_FIRST_BATCH_S: Final[Mapping[str, Mapping[int, float]]] = {
    "pytorch": {4: 58.7, 8: 91.4, 16: 141.4, 24: 208.4, 32: 277.3},
}
"""SPDL, Table 2: seconds to the first batch by loader and concurrency, the whole of ImageNet, torchvision's dataset."""

SPDL_PEAK: Final[Mapping[str, float]] = {"spdl": 2627.0, "pytorch": 1510.0}
"""SPDL, Table 3, Python 3.12: highest images per second without downstream load."""
