"""The baseline loaders against bare scripts of their engines, and what generated data cost; needs no root.

Prints a line per demand (asked, measured, verdict) and exits 1 when one falls short. Ours and the bare scripts take
turns, and medians are compared, for neighbours on the host come and go. `--quick` takes some six minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

# The folder has a loaders.py, which must not hide the package of that name: it is to be searched last.
sys.path.append(sys.path.pop(0))

import numpy as np
from loaders_engines import Measured, Order
from loaders_memory import worker_peak_mb

from harness.datasets.coco import CocoLike
from harness.datasets.imagenet_like import ImagenetLike
from harness.datasets.kits19 import Kits19Like
from harness.datasets.librispeech.generated import LibriSpeechLike
from harness.errors import DatasetError
from loaders.base import Samples

HERE = Path(__file__).resolve().parent
WORKERS = 2
"""Processes or threads of every engine, alike."""
ENGINES = ("pytorch", "dali", "spdl", "spdl_io")
NATIVE_LEAST = 0.97
GENERATED_MB_PER_S = 50
VOLUMES_PER_WORKER = 2


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table; `met` is None where nothing is asked."""

    what: str
    asked: str
    measured: str
    met: bool | None


class Bench:
    """Datasets, made when they are first wanted."""

    def __init__(self, temporary: Path, cache: Path | None, *, quick: bool) -> None:
        self.quick, self.temporary, self._cache = quick, temporary, cache or temporary

    @cached_property
    def images(self) -> Path:
        """An ImageNet-like set, each picture several times over, so that an epoch takes seconds."""
        handle = ImagenetLike("bench_images", samples=200).open(self._cache, quietly)
        samples, times = handle.samples, 3 if self.quick else 8
        many = Samples(
            samples.root, samples.paths * times, np.tile(samples.labels, times), np.tile(samples.sizes, times)
        )
        for path in samples.paths:
            (samples.root / path).read_bytes()
        many.save(self.temporary / "images.parquet")
        return self.temporary / "images.parquet"

    def volumes(self, scale: float) -> Samples:
        """KiTS19-like cases of the published sizes times a scale."""
        return Kits19Like("bench_volumes", samples=8, scale=scale).open(self._cache, quietly).samples

    @cached_property
    def _runs(self) -> dict[str, list[Measured]]:
        return {}

    def run(self, engine: str, seconds: float) -> Measured:
        """Measure one engine in a process of its own, and remember it."""
        order = Order(engine, str(self.images), WORKERS, seconds=seconds)
        said = subprocess.run(
            [sys.executable, "-P", str(HERE / "loaders_engines.py")],
            input=json.dumps(asdict(order)),
            env={**os.environ, "PYTHONPATH": str(HERE.parent)},
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        ).stdout
        measured = Measured(**json.loads(said))
        self._runs.setdefault(engine, []).append(measured)
        return measured

    def ran(self, engine: str) -> list[Measured]:
        """Return what was measured of an engine so far."""
        return self._runs.get(engine, [])


def quietly(*_: object) -> None:
    """Show no progress."""


def native(bench: Bench) -> Iterator[Line]:
    """Compare each loader with a bare script of its engine."""
    turns, seconds = (3, 3.0) if bench.quick else (7, 6.0)
    for engine in ENGINES:
        ratios = []
        for turn in range(turns):
            # The first of two runs would have the warmer machine every time.
            pair = [engine, f"native {engine}"]
            rates = {name: bench.run(name, seconds).images_per_s for name in (pair if turn % 2 else pair[::-1])}
            ratios.append(rates[engine] / rates[f"native {engine}"])
        ours, theirs = (median(one.images_per_s for one in bench.ran(name)) for name in pair)
        ratio = median(ratios)
        measured = f"{ratio:.3f} ({min(ratios):.3f} to {max(ratios):.3f}; {ours:.0f} and {theirs:.0f} images/s)"
        yield Line(f"{engine}: ours over the bare script", f">= {NATIVE_LEAST}", measured, ratio >= NATIVE_LEAST)


def cost(bench: Bench) -> Iterator[Line]:
    """Table of images per second and CPU per image, with the bounds beyond which no loader can be."""
    for engine in (*ENGINES, "reading", "fixed"):
        if not bench.ran(engine):
            bench.run(engine, 2.0 if bench.quick else 5.0)
        runs = bench.ran(engine)
        rate, cpu_ms = median(one.images_per_s for one in runs), 1e3 * median(one.cpu_s_per_image for one in runs)
        names = {"reading": "bound: files read, not decoded", "fixed": "bound: one batch made beforehand"}
        yield Line(
            names.get(engine, f"{engine}, {WORKERS} workers"),
            "",
            f"{rate:.0f} images/s, {cpu_ms:.3f} CPU ms an image",
            None,
        )


def memory(bench: Bench) -> Iterator[Line]:
    """What a worker holds of volumes that it reads through maps, in samples: the largest, for one is mapped whole."""
    # Workers that load next to nothing have what Python and torch take.
    base_mb = worker_peak_mb(bench.volumes(1e-4), edge=14)
    samples = bench.volumes(0.25 if bench.quick else 0.5)
    peak_mb, mean_mb = worker_peak_mb(samples, edge=64), float(samples.sizes.mean()) / 1e6
    largest_mb = float(samples.sizes.max()) / 1e6
    held = (peak_mb - base_mb) / largest_mb
    measured = (
        f"{held:.2f} ({peak_mb - base_mb:.0f} MB beyond Python's; volumes {mean_mb:.0f}, up to {largest_mb:.0f} MB)"
    )
    yield Line(
        "volumes in a worker's resident memory", f"<= {VOLUMES_PER_WORKER}", measured, held <= VOLUMES_PER_WORKER
    )


def generators(bench: Bench) -> Iterator[Line]:
    """How fast datasets are made, on all cores."""
    much = 1 if bench.quick else 4
    makers: list[Any] = [
        ImagenetLike("generated_imagenet", samples=700 * much),
        Kits19Like("generated_kits19", samples=8 * much, scale=0.1),
        CocoLike("generated_coco", samples=100 * much, scale=1.0),
        LibriSpeechLike("generated_librispeech", samples=400 * much, scale=1.0),
    ]
    for maker in makers:
        began = time.perf_counter()
        with tempfile.TemporaryDirectory(dir=bench.temporary) as cache:
            samples = maker.open(Path(cache), quietly).samples
            seconds = time.perf_counter() - began
        rate = samples.sizes.sum() / 1e6 / seconds
        measured = f"{rate:.0f} MB/s ({samples.sizes.sum() / 1e6:.0f} MB in {seconds:.1f} s)"
        yield Line(
            f"{type(maker).__name__} writes", f">= {GENERATED_MB_PER_S} MB/s", measured, rate >= GENERATED_MB_PER_S
        )


PARTS: dict[str, Callable[[Bench], Iterator[Line]]] = {
    each.__name__: each for each in (native, cost, memory, generators)
}


def main() -> int:
    """Measure and print; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="shorter turns and smaller sets")
    parser.add_argument("--only", choices=PARTS, action="append", help="only this part; may be repeated")
    parser.add_argument("--cache", type=Path, help="folder in which the datasets stay (default: a temporary one)")
    options = parser.parse_args()
    short = 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    # Datasets lie in memory: no disk is measured.
    memory_folder = Path("/dev/shm")
    with tempfile.TemporaryDirectory(
        prefix="joulefeed-loaders-", dir=memory_folder if memory_folder.is_dir() else None
    ) as temporary:
        bench = Bench(Path(temporary), options.cache, quick=options.quick)
        try:
            print(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}")
            print(f"{'demand':<46}{'asked':<12}{'measured':<62}verdict")
            for name in options.only or PARTS:
                for line in PARTS[name](bench):
                    verdict = "" if line.met is None else "met" if line.met else "SHORT"
                    print(f"{line.what:<46}{line.asked:<12}{line.measured:<62}{verdict}", flush=True)
                    short += line.met is False
        except DatasetError as error:
            print(f"benchmarks/loaders.py: {error}", file=sys.stderr)
            return error.exit_status
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main())
