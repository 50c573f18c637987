"""The baseline loaders against bare scripts of their engines, and what generated data cost; needs no root.

Prints a line per demand (asked, measured, verdict) and exits 1 when one falls short. Ours and the bare script, which
does the same arithmetic, take turns in the order ABBA, and the mean of the pairs' ratios is judged by its interval, for
neighbours on the host come and go. Takes a quarter of an hour; `--quick` some five minutes.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from bench import Line, at_least, at_most, judge_ratios, make_parser, memory_folder, run, spread, status_kb
from loaders_arms import BOUNDS, ENGINES
from loaders_engines import Order, Turn
from loaders_turns import REALISTIC_IMAGES, Pair, alternate, arms, cpu, measured, medians, realistic

from harness.datasets.coco import CocoLike
from harness.datasets.imagenet_like import ImagenetLike
from harness.datasets.kits19 import Kits19Like
from harness.datasets.librispeech.generated import LibriSpeechLike
from loaders import PyTorchLoader
from loaders.base import Samples
from loaders.pipeline.crop3d import RandomCrop
from loaders.pipeline.segmentation import SegmentationPipeline

WORKERS = 2
"""Processes or threads of every engine, alike."""
PICTURES = 6400
"""Of an epoch, each a file of its own. DALI's shuffling keeps the last thousand or so mapped: of a small set
those would come again before they are given up, and cost a bare script nothing."""
TURN_S = 5.0
NATIVE_LEAST = 0.97
GENERATED_MB_PER_S = 50
VOLUMES_PER_WORKER = 2


class Bench:
    """Datasets, made when they are first wanted."""

    def __init__(self, temporary: Path, cache: Path | None, engines: Sequence[str], *, quick: bool) -> None:
        self.quick, self.temporary, self.engines, self._cache = quick, temporary, engines, cache or temporary
        self.turns: dict[str, list[Turn]] = {}
        """What ours came to, by engine or bound."""

    @cached_property
    def images(self) -> Path:
        """An ImageNet-like set in the page cache; an epoch of it takes seconds."""
        pictures = PICTURES // 2 if self.quick else PICTURES
        samples = ImagenetLike("bench_images", samples=pictures).open(self._cache, quietly).samples
        for path in samples.paths:
            (samples.root / path).read_bytes()
        samples.save(self.temporary / "images.parquet")
        return self.temporary / "images.parquet"

    def volumes(self, scale: float) -> Samples:
        """KiTS19-like cases of the published sizes times a scale."""
        return Kits19Like("bench_volumes", samples=8, scale=scale).open(self._cache, quietly).samples

    def order(self, arm: str) -> Order:
        """Return the arguments of an arm: the same for each."""
        return Order(arm, str(self.images), WORKERS)


def compare(pairs: Sequence[Pair], ratio: Callable[[Turn, Turn], float]) -> tuple[float, str]:
    """Return the median of the pairs' ratios, and it in words with the range."""
    ratios = [ratio(*pair) for pair in pairs]
    return median(ratios), spread(ratios)


def quietly(*_: object) -> None:
    """Show no progress."""


def native(bench: Bench) -> Iterator[Line]:
    """Compare each loader with a bare script of its engine, and with one of its documentation's kind."""
    for engine in bench.engines:
        orders = [bench.order(f"{kind} {engine}") for kind in ("ours", "bare", "documented")]
        with arms(orders) as (ours, bare, documented):
            pairs = alternate(ours, bare, pairs=3 if bench.quick else 8, seconds=TURN_S)
            peers = alternate(ours, documented, pairs=1 if bench.quick else 2, seconds=TURN_S)
        bench.turns[engine] = [mine for mine, _ in pairs]
        rates = medians(pairs, lambda turn: turn.steady_per_s, ".0f")
        what = f"{engine}: ours over bare, epoch of {REALISTIC_IMAGES} images"
        ratios = [realistic(*pair) for pair in pairs]
        yield judge_ratios(what, f">= {NATIVE_LEAST}", ratios, f"{rates} images/s", pairs=pairs)
        starts = medians(pairs, lambda turn: turn.start_s, ".2f")
        words = f"{compare(pairs, measured)[1]} ({starts} s to begin and end one)"
        yield Line(f"  {engine}: epochs of {len(Samples.load(bench.images))} as they were run", "", words)
        costs = medians(pairs, lambda turn: 1e3 * turn.cpu_s_per_image, ".3f")
        yield Line(f"  {engine}: CPU time per image", "", f"{compare(pairs, cpu)[1]} ({costs} ms)")
        rates = medians(peers, lambda turn: turn.images_per_s, ".0f")
        words = f"{compare(peers, measured)[1]} ({rates} images/s)"
        what = f"  {engine}: over the documentation's transforms, as run (not judged: other work)"
        yield Line(what, "", words, raw={"pairs": peers})


def cost(bench: Bench) -> Iterator[Line]:
    """Table of images per second and CPU per image, with the bounds beyond which no loader can be."""
    wanted = [*(f"ours {engine}" for engine in bench.engines if engine not in bench.turns), *BOUNDS]
    for name in wanted:
        with arms([bench.order(name)]) as (arm,):
            bench.turns[name.removeprefix("ours ")] = [arm.turn(2.0 if bench.quick else TURN_S)]
    names = {"reading": "bound: files read, not decoded", "fixed": "bound: one batch made beforehand"}
    for name in (*bench.engines, *BOUNDS):
        turns = bench.turns[name]
        rate, cpu_ms = median(one.images_per_s for one in turns), 1e3 * median(one.cpu_s_per_image for one in turns)
        what = names.get(name, f"{name}, {WORKERS} workers")
        yield Line(what, "", f"{rate:.0f} images/s, {cpu_ms:.3f} CPU ms an image", raw={"turns": turns})


def memory(bench: Bench) -> Iterator[Line]:
    """What a worker holds of volumes that it reads through maps, in samples: the largest, for one is mapped whole."""
    # Workers that load next to nothing have what Python and torch take.
    base_mb = worker_peak_mb(bench.volumes(1e-4), edge=14)
    samples = bench.volumes(0.25 if bench.quick else 0.5)
    peak_mb, mean_mb = worker_peak_mb(samples, edge=64), float(samples.sizes.mean()) / 1e6
    largest_mb = float(samples.sizes.max()) / 1e6
    held = (peak_mb - base_mb) / largest_mb
    words = f"{held:.2f} ({peak_mb - base_mb:.0f} MB beyond Python's; volumes {mean_mb:.0f}, up to {largest_mb:.0f} MB)"
    raw = {"base_mb": base_mb, "peak_mb": peak_mb, "largest_mb": largest_mb}
    yield at_most("largest volumes in a worker's resident memory", VOLUMES_PER_WORKER, held, words, **raw)


def worker_peak_mb(samples: Samples, *, edge: int) -> float:
    """Return the peak of resident memory, mapped files included, of the larger of two workers over two epochs, MB."""
    pipeline = SegmentationPipeline(crop=RandomCrop(edge))
    with PyTorchLoader(samples=samples, transform=pipeline, batch_size=2, seed=0, num_workers=2) as loader:
        for epoch in range(2):
            for _ in loader.epoch(epoch):
                workers = [child.pid for child in psutil.Process().children()]
        return max(status_kb(pid, "VmHWM") for pid in workers) * 1024 / 1e6


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
        mb = float(samples.sizes.sum()) / 1e6
        words = f"{mb / seconds:.0f} ({mb:.0f} MB in {seconds:.1f} s)"
        yield at_least(f"{type(maker).__name__} writes, MB/s", GENERATED_MB_PER_S, mb / seconds, words)


PARTS: dict[str, Callable[[Bench], Iterator[Line]]] = {
    each.__name__: each for each in (native, cost, memory, generators)
}


def main() -> int:
    """Measure and print; return the exit status."""
    parser = make_parser(__doc__, "shorter turns and smaller sets", PARTS)
    parser.add_argument("--engine", choices=ENGINES, action="append", help="only this engine; may be repeated")
    parser.add_argument("--cache", type=Path, help="folder in which the datasets stay (default: a temporary one)")
    options = parser.parse_args()
    with memory_folder("loaders") as temporary:
        bench = Bench(temporary, options.cache, options.engine or ENGINES, quick=options.quick)
        parts = {name: partial(part, bench) for name, part in PARTS.items()}
        return run(parts, options, widths=(50, 10, 60), is_whole=not options.engine)


if __name__ == "__main__":
    sys.exit(main())
