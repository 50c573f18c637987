"""What the MinatoLoader and SPDL papers report of loaders, as far as their text gives numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

__all__ = [
    "MINATO",
    "MINATO_FIG1B_GPU",
    "MINATO_FIG2",
    "MINATO_FIG3",
    "MINATO_FIG7",
    "MINATO_FIG8_GPU",
    "MINATO_FIG9_MOST",
    "MINATO_FIG10",
    "MINATO_FIG11_SHARE",
    "MINATO_FIG11_TIME_S",
    "MINATO_FIG12_MOST",
    "SPDL",
    "SPDL_FIRST_BATCH_S",
    "SPDL_PEAK",
    "WORK",
    "WorkTimes",
]

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

MINATO_FIG3: Final[Mapping[str, float]] = {"pecan": 1.03}
"""MinatoLoader, figure 3b and section 3.2: GPU utilisation over that with PyTorch's DataLoader, by loader."""

MINATO_FIG10: Final[Mapping[str, tuple[float, float]]] = {
    "pytorch": (650.0, 0.57),
    "dali": (500.0, 0.812),
    "sample_aware": (330.0, 0.821),
}
"""MinatoLoader, section 5.5: training time in s and mean GPU use with memory for a third of the data, by loader."""

MINATO_FIG11_SHARE: Final[Mapping[str, Mapping[str, float]]] = {
    "mask_rcnn": {"pytorch": 0.15, "sample_aware": 0.17},
    "unet3d": {"pytorch": 0.23, "sample_aware": 0.24},
}
"""MinatoLoader, section 5.6: mean share of slow samples in a batch, by workload and loader."""

MINATO_FIG11_TIME_S: Final[Mapping[str, Mapping[str, float]]] = {
    "mask_rcnn": {"pytorch": 50_100.0, "sample_aware": 18_720.0},
    "unet3d": {"pytorch": 28_920.0, "sample_aware": 13_920.0},
}
"""MinatoLoader, section 5.6: training time in s to the same accuracy, by workload and loader."""

MINATO_FIG12_MOST: Final = 2.4
"""MinatoLoader, section 5.6: how many times as fast as the others it is at most, at 25 to 75 % slow samples."""

MINATO_FIG1B_GPU: Final = 0.574
"""MinatoLoader, section 3.3: mean GPU utilisation of 3D-UNet fed by PyTorch's DataLoader."""

MINATO_FIG7: Final[Mapping[str, Mapping[str, tuple[float, float]]]] = {
    "unet3d": {"pytorch": (2.5, 2.5), "pecan": (2.5, 2.5), "dali": (1.3, 1.3)},
    "mask_rcnn": {"pytorch": (2.0, 2.0), "pecan": (2.0, 2.0), "dali": (1.6, 1.6)},
    "speech_3s": {"pytorch": (3.5, 5.5), "pecan": (3.5, 5.5), "dali": (2.0, 2.0)},
    "speech_10s": {"pytorch": (3.5, 5.5), "pecan": (3.5, 5.5), "dali": (2.0, 2.0)},
}
"""MinatoLoader, figure 7 and section 5.2: its throughput over that of others, from least to most, by workload and
loader. Those of object detection are the most that was seen, DALI's of speech the mean over both workloads."""

MINATO_FIG8_GPU: Final[Mapping[str, float]] = {"sample_aware": 0.9045, "pytorch": 0.464}
"""MinatoLoader, figure 8 and section 5.3: GPU utilisation, mean over all workloads, by loader."""

MINATO_FIG9_MOST: Final[Mapping[str, Mapping[str, float]]] = {
    "4 A100": {"pytorch": 7.5, "pecan": 4.9, "dali": 3.0},
    "8 V100": {"pytorch": 4.9, "pecan": 4.9, "dali": 2.6},
}
"""MinatoLoader, section 5.2: by what factor it trains faster at most, by machine and loader."""

SPDL_FIRST_BATCH_S: Final[Mapping[str, Mapping[int, float]]] = {
    "pytorch": {4: 58.7, 8: 91.4, 16: 141.4, 24: 208.4, 32: 277.3},
}
"""SPDL, Table 2: seconds to the first batch by loader and concurrency, the whole of ImageNet, torchvision's dataset."""

SPDL_PEAK: Final[Mapping[str, float]] = {"spdl": 2627.0, "pytorch": 1510.0}
"""SPDL, Table 3, Python 3.12: highest images per second without downstream load."""
