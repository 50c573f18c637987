"""The sample-aware loader against the work-conserving bound, and PyTorch beside it with the same workers.

The bound is what all samples took together in their transforms, in seconds, over the number of workers: no loader of
as many workers is faster. Steps sleep, as `loaders.pipelines.pretended_work` says why, in a hundredth or two of the
paper's times. Prints a line per demand (asked, measured, verdict) and exits 1 when one falls short. `--quick` takes
some two minutes.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

# The folder has a loaders.py, which must not hide the package of that name: it is to be searched last.
sys.path.append(sys.path.pop(0))

import numpy as np
import psutil
import torch
from torch.utils.data import DataLoader, Dataset

from loaders import SampleAwareDataLoader
from loaders.pipelines.pretended_work import HeavyStep, LightStep, TimedStep

WORKERS = 12
"""As the paper has them (section 5.1)."""
BATCH = 24
BOUND_MOST = 1.03
BEHIND_MOST = 1.02
CPU_MOST_US = 100
LINEAR_LEAST = 0.95
TENSOR = (3, 224, 224)
"""float32: 602 kB."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table; `met` is None where nothing is asked."""

    what: str
    asked: str
    measured: str
    met: bool | None


@dataclass(frozen=True)
class Nap:
    """A transform that sleeps as long as a step says for the sample of this index."""

    step: TimedStep
    name: str

    def __call__(self, index: int) -> int:
        """Return the index, after the time has passed."""
        seconds = self.step.seconds_for(index)
        if seconds > 0:
            time.sleep(seconds)
        return index


@dataclass(frozen=True)
class Part:
    """A share of what each sample of a table takes."""

    seconds: tuple[float, ...]
    share: float

    def seconds_for(self, sample_id: int) -> float:
        """Return the time of this part, in seconds."""
        return self.seconds[sample_id % len(self.seconds)] * self.share


class Indices(Dataset[int]):
    """Gives the index, after transforms where there are some."""

    def __init__(self, count: int, transforms: Sequence[Nap] = ()) -> None:
        self._count, self._transforms = count, transforms

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> int:
        for transform in self._transforms:
            index = transform(index)
        return index


class Pictures(Dataset[Any]):
    """Gives the same tensor again and again, which costs nothing."""

    def __init__(self, count: int) -> None:
        self._count, self._tensor = count, torch.randn(TENSOR)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Any:
        return self._tensor, index


def speech(heavy_s: float, scale: float, share: float = 0.2) -> list[Nap]:
    """Speech as the paper has it: a light step for all, a heavy one for some, and what is done to the features."""
    light, heavy, last = LightStep(0.5, scale), HeavyStep(heavy_s, share, scale), LightStep(0.05, scale)
    return [Nap(light, "LightStep"), Nap(heavy, "HeavyStep"), Nap(last, "Features")]


def unet(scale: float) -> list[Nap]:
    """3D-UNet with the spread of the paper's table 2, the crop two thirds of it."""
    rng = np.random.default_rng(0)
    seconds = tuple(np.clip(rng.gamma(6.4, 0.5 / 6.4, 1024), 0.01, 2.23) * scale)
    shares = {"RandomCrop": 0.68, "RandomFlip": 0.05, "RandomBrightness": 0.17, "GaussianNoise": 0.1}
    return [Nap(Part(seconds, share), name) for name, share in shares.items()]


def bound_s(transforms: Sequence[Nap], count: int, workers: int) -> float:
    """Return what `count` samples take if no worker ever waits."""
    return sum(nap.step.seconds_for(k) for nap in transforms for k in range(count)) / workers


@dataclass(frozen=True, slots=True)
class Epoch:
    """What an epoch took."""

    seconds: float
    first_s: float
    work_s: float
    """That the transforms took in all workers, as they measured it; 0 where nobody did."""


def epochs(ours: bool, transforms: Sequence[Nap], count: int, *, workers: int = WORKERS, turns: int = 1) -> list[Epoch]:
    """Run epochs with workers that are there, after a short one that starts them and profiles."""
    options: dict[str, Any] = {
        "batch_size": BATCH,
        "shuffle": True,
        "num_workers": workers,
        "persistent_workers": True,
        "generator": torch.Generator().manual_seed(0),
    }
    if ours:
        loader: Any = SampleAwareDataLoader(Indices(count), transforms=transforms, **options)
    else:
        loader = DataLoader(Indices(count, transforms), **options)
    batches = iter(loader)
    for _ in range(min(len(loader), 6)):
        next(batches)
    for _ in batches:
        pass
    found = []
    for _ in range(turns):
        before_s, began = worked_s(loader), time.perf_counter()
        batches = iter(loader)
        seen = next(batches).tolist()
        first_s = time.perf_counter() - began
        for batch in batches:
            seen += batch.tolist()
        found.append(Epoch(time.perf_counter() - began, first_s, worked_s(loader) - before_s))
        assert sorted(seen) == list(range(count)), "a sample is missing or came twice"
    return found


def worked_s(loader: Any) -> float:
    """Return what all stages of all samples took so far."""
    figures = loader.stats() if isinstance(loader, SampleAwareDataLoader) else {}
    stages = [name.removesuffix("_mean_s") for name in figures if name.endswith("_mean_s")]
    return sum(figures[f"{stage}_count"] * figures[f"{stage}_mean_s"] for stage in stages)


def bound(quick: bool) -> Iterator[Line]:
    """How far from the bound, and how long until the first batch."""
    cases = {
        "Speech-3s": (speech(3, 0.02), 2400),
        "Speech-10s": (speech(10, 0.01), 2400),
        "3D-UNet": (unet(0.03), 2400),
    }
    for name, (transforms, usual) in cases.items():
        count = usual // 2 if quick else usual
        told_s = bound_s(transforms, count, WORKERS)
        ours, theirs = epochs(True, transforms, count), epochs(False, transforms, count)
        ratio = median(WORKERS * one.seconds / one.work_s for one in ours)
        seconds, other_s = median(one.seconds for one in ours), median(one.seconds for one in theirs)
        yield Line(
            f"{name}: epoch over the bound",
            f"<= {BOUND_MOST}",
            f"{ratio:.3f} ({seconds:.2f} s; over the steps' told times {seconds / told_s:.3f}, "
            f"PyTorch {other_s / told_s:.3f})",
            ratio <= BOUND_MOST,
        )
        first, other_first = median(one.first_s for one in ours), median(one.first_s for one in theirs)
        yield Line(
            f"{name}: first batch over PyTorch's",
            "<= 0.5",
            f"{first / other_first:.2f} ({1e3 * first:.0f} and {1e3 * other_first:.0f} ms)",
            first <= other_first / 2,
        )


def shares(quick: bool) -> Iterator[Line]:
    """Speech-3s with 0 to 100 % heavy samples (figure 12), beside PyTorch."""
    for percent in (0, 25, 50, 75, 100):
        transforms = speech(3, 0.02 if percent == 0 else 0.01, percent / 100)
        count = 1200 if quick else 2400
        ours = median(one.seconds for one in epochs(True, transforms, count))
        theirs = median(one.seconds for one in epochs(False, transforms, count))
        most = BEHIND_MOST if percent in (0, 100) else 1.0
        yield Line(
            f"{percent} % slow samples: epoch over PyTorch's",
            f"<= {most}",
            f"{ours / theirs:.3f} ({ours:.2f} and {theirs:.2f} s, bound {bound_s(transforms, count, WORKERS):.2f} s)",
            ours <= most * theirs,
        )


def cost(quick: bool) -> Iterator[Line]:
    """CPU of all processes for a sample whose transforms cost nothing, and memory with batches waiting."""
    count, kinds = 3000 if quick else 6000, {"ours": SampleAwareDataLoader, "PyTorch": DataLoader}
    cpu_us, peak_mb = {}, {}
    for name, kind in kinds.items():
        loader: Any = kind(Pictures(count), 32, True, num_workers=2, persistent_workers=True)
        for _ in loader:
            pass
        everyone = [os.getpid(), *(child.pid for child in psutil.Process().children())]
        began = sum(map(cpu_s, everyone))
        for _ in loader:
            pass
        cpu_us[name] = 1e6 * (sum(map(cpu_s, everyone)) - began) / count
        peak_mb[name] = 0.0
        for number, _ in enumerate(loader):
            # A step long enough for all that may be ready to be so.
            time.sleep(0.03)
            if number % 8 == 7:
                peak_mb[name] = max(peak_mb[name], resident_mb(everyone))
            if number == 40:
                break
        del loader
    yield Line(
        "CPU a sample of 602 kB, us",
        f"<= {CPU_MOST_US}",
        f"{cpu_us['ours']:.0f} (PyTorch {cpu_us['PyTorch']:.0f})",
        cpu_us["ours"] <= CPU_MOST_US,
    )
    yield Line(
        "memory with the same prefetch over PyTorch's",
        "<= 1",
        f"{peak_mb['ours'] / peak_mb['PyTorch']:.2f} ({peak_mb['ours']:.0f} and {peak_mb['PyTorch']:.0f} MB)",
        peak_mb["ours"] <= peak_mb["PyTorch"],
    )


def scaling(quick: bool) -> Iterator[Line]:
    """Samples a second with more and more workers, each of whose samples sleeps."""
    alone = 0.0
    for workers in (1, 2, 8, 32, 128):
        transforms = [Nap(LightStep(0.05, 0.5), "First"), Nap(LightStep(0.05, 0.5), "Second")]
        count = (40 if quick else 100) * workers
        took_s = median(one.seconds for one in epochs(True, transforms, count, workers=workers))
        each = count / took_s / workers
        alone = alone or each
        yield Line(
            f"{workers} workers: samples/s a worker over one's",
            f">= {LINEAR_LEAST}",
            f"{each / alone:.3f} ({count / took_s:.0f} samples/s)",
            each >= LINEAR_LEAST * alone,
        )


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process and its threads so far."""
    tasks = Path(f"/proc/{pid}/task")
    return 1e-9 * sum(int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir())


def resident_mb(pids: Sequence[int]) -> float:
    """Return what processes hold together: their own pages, their parts of common files, and all shared memory.

    Shared memory is counted where it lies, for what is handed over belongs to no process meanwhile.
    """
    own = 0
    for pid in pids:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines[1:]}
        own += sizes["Pss"] - sizes["Pss_Shmem"]
    shm = os.statvfs("/dev/shm")
    named = (shm.f_blocks - shm.f_bfree) * shm.f_frsize
    # A map has a descriptor of its own, for the same memory.
    unnamed = {each.st_ino: each.st_blocks * 512 for each in map(memfd, Path("/proc/self/fd").iterdir()) if each}
    return (own + named + sum(unnamed.values())) / 1e6


def memfd(descriptor: Path) -> os.stat_result | None:
    """Return what is known of the memory behind a descriptor of this process, None where there is none."""
    try:
        return descriptor.stat() if "memfd:" in str(descriptor.readlink()) else None
    except OSError:
        return None


PARTS: dict[str, Callable[[bool], Iterator[Line]]] = {each.__name__: each for each in (bound, shares, cost, scaling)}


def main() -> int:
    """Measure and print; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer samples")
    parser.add_argument("--only", choices=PARTS, action="append", help="only this part; may be repeated")
    options = parser.parse_args()
    # More workers than processors are meant: they sleep.
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    warnings.filterwarnings("ignore", message="the dataset does all")
    print(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}")
    print(f"{'demand':<46}{'asked':<12}{'measured':<74}verdict")
    short = 0
    for name in options.only or PARTS:
        for line in PARTS[name](options.quick):
            verdict = "" if line.met is None else "met" if line.met else "SHORT"
            print(f"{line.what:<46}{line.asked:<12}{line.measured:<74}{verdict}", flush=True)
            short += line.met is False
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main())
