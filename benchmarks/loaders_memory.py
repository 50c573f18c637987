"""The most that a DataLoader worker ever had resident while it loaded volumes."""

from __future__ import annotations

from pathlib import Path

import psutil

from loaders import PyTorchLoader
from loaders.base import Samples
from loaders.pipelines.crop3d import RandomCrop
from loaders.pipelines.segmentation import SegmentationPipeline


def worker_peak_mb(samples: Samples, *, edge: int) -> float:
    """Return the peak of resident memory, mapped files included, of the larger of two workers over two epochs, MB."""
    pipeline = SegmentationPipeline(crop=RandomCrop(edge))
    with PyTorchLoader(samples=samples, transform=pipeline, batch_size=2, seed=0, num_workers=2) as loader:
        for epoch in range(2):
            for _ in loader.epoch(epoch):
                workers = [child.pid for child in psutil.Process().children()]
        return max(_peak_mb(pid) for pid in workers)


def _peak_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))) * 1024 / 1e6
