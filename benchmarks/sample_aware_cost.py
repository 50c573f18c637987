"""What a sample costs whose transforms cost nothing: CPU time of all processes, and memory with batches waiting."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import torch
from bench import Line, at_most, cpu_s
from torch.utils.data import DataLoader, Dataset

from loaders import SampleAwareDataLoader

CPU_MOST_US = 100
TENSOR = (3, 224, 224)
"""float32: 602 kB."""


class Pictures(Dataset[Any]):
    """Gives the same tensor again and again, which costs nothing."""

    def __init__(self, count: int) -> None:
        self._count, self._tensor = count, torch.randn(TENSOR)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Any:
        return self._tensor, index


def cost(quick: bool) -> Iterator[Line]:
    """CPU of all processes for a sample whose transforms cost nothing, and memory with batches waiting."""
    count, kinds = 3000 if quick else 6000, {"ours": SampleAwareDataLoader, "PyTorch": DataLoader}
    cpu_us, peak_mb = {}, {}
    for name, kind in kinds.items():
        beside_mb = shared_mb()  # of other programs, or left by them
        loader: Any = kind(Pictures(count), 32, True, num_workers=2, persistent_workers=True)
        for _ in loader:
            pass
        everyone = [os.getpid(), *(child.pid for child in psutil.Process().children())]
        began = cpu_s(everyone)
        for _ in loader:
            pass
        cpu_us[name] = 1e6 * (cpu_s(everyone) - began) / count
        peak_mb[name] = 0.0
        for number, _ in enumerate(loader):
            # A step long enough for all that may be ready to be so.
            time.sleep(0.03)
            if number % 8 == 7:
                peak_mb[name] = max(peak_mb[name], resident_mb(everyone) - beside_mb)
            if number == 40:
                break
        del loader
    words = f"{cpu_us['ours']:.0f} (PyTorch {cpu_us['PyTorch']:.0f})"
    yield at_most("CPU beyond the transforms, a sample of 602 kB, us", CPU_MOST_US, cpu_us["ours"], words, us=cpu_us)
    ratio = peak_mb["ours"] / peak_mb["PyTorch"]
    words = f"{ratio:.2f} ({peak_mb['ours']:.0f} and {peak_mb['PyTorch']:.0f} MB)"
    yield at_most("memory with the same prefetch over PyTorch's", 1, ratio, words, mb=peak_mb)


def resident_mb(pids: Sequence[int]) -> float:
    """Return what processes hold together: their own pages, their parts of common files, and all shared memory.

    Shared memory is counted where it lies, because memory on its way belongs to no process.
    """
    own = 0
    for pid in pids:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines[1:]}
        own += sizes["Pss"] - sizes["Pss_Shmem"]
    # A map has a descriptor of its own, for the same memory.
    unnamed = {each.st_ino: each.st_blocks * 512 for each in map(memfd, Path("/proc/self/fd").iterdir()) if each}
    return (own + sum(unnamed.values())) / 1e6 + shared_mb()


def shared_mb() -> float:
    """Return what lies in /dev/shm."""
    shm = os.statvfs("/dev/shm")
    return (shm.f_blocks - shm.f_bfree) * shm.f_frsize / 1e6


def memfd(descriptor: Path) -> os.stat_result | None:
    """Return the facts of the memory behind a descriptor of this process, None without one."""
    try:
        return descriptor.stat() if "memfd:" in str(descriptor.readlink()) else None
    except OSError:
        return None
