"""Whole epochs of the sample-aware loader beside PyTorch's DataLoader, in order and with `in_order=False`.

Ours is measured twice: with random numbers of each sample's own, which is the default and which neither of PyTorch's
has, and with numbers that go on from sample to sample, as PyTorch's do.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from statistics import median
from typing import Any

import torch
from bench import Line, judge_ratios
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, default_collate

from loaders import SampleAwareDataLoader

RATIO_LEAST = 1.0
_UNSEEDED = partial(SampleAwareDataLoader, seed_samples=False)
"""Whose random numbers go on from sample to sample, as PyTorch's do."""
_TURNS, _QUICK_TURNS = 7, 3


@dataclass(frozen=True)
class Tensors(Dataset[torch.Tensor]):
    """Gives float32 tensors of `least` to `most` bytes, full of their index, after CPU work of `burn_s`."""

    count: int
    least: int
    most: int
    burn_s: float = 0.0
    heavy: int = 1
    """By how many times a fifth of the samples takes longer than the others."""

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        burn(self.burn_s * (self.heavy if index % 5 == 0 else 1))
        spread = (self.most - self.least) // 4
        return torch.full((self.least // 4 + (index * 7919 % spread if spread else 0),), float(index))


@dataclass(frozen=True)
class Pad:
    """Pads tensors to the longest one, after a wait and CPU work."""

    sleep_s: float = 0.0
    burn_s: float = 0.0

    def __call__(self, samples: list[torch.Tensor]) -> torch.Tensor:
        """Return a batch, shape (samples, longest)."""
        if self.sleep_s:
            time.sleep(self.sleep_s)
        burn(self.burn_s)
        return pad_sequence(samples, batch_first=True)


@dataclass(frozen=True)
class Case:
    """The dataset of a comparison, and how it is loaded."""

    what: str
    dataset: Tensors
    batch: int
    workers: int = 2
    collate: Pad | None = None
    differ: bool = False
    """Whether samples differ in cost: the loader has to be ahead of `in_order=False`."""


CASES = {
    "equal": Case("equal samples of 602 kB", Tensors(3000, 602_112, 602_112), 32),
    "varying": Case("4 to 40 kB, padded", Tensors(20_000, 4_000, 40_000), 32, collate=Pad(), differ=True),
    "varying_large": Case("80 to 320 kB, padded", Tensors(4_000, 80_000, 320_000), 32, collate=Pad(), differ=True),
    "tiny": Case("samples of 1 kB", Tensors(40_000, 1_000, 1_000), 32),
    "huge": Case("samples of 10 MB", Tensors(160, 10_000_000, 10_000_000), 8),
    "collation": Case("a collation of 20 ms", Tensors(800, 1_000, 1_000), 4, 8, Pad(sleep_s=0.02)),
    "collation_varying": Case(
        "4 to 40 kB, a collation of 4 ms", Tensors(6_400, 4_000, 40_000), 32, collate=Pad(sleep_s=0.004), differ=True
    ),
    "collation_cpu": Case("a collation of 20 ms of CPU", Tensors(800, 1_000, 1_000), 4, collate=Pad(burn_s=0.02)),
    "burning": Case("60 samples of 25 or 150 ms of CPU", Tensors(60, 400, 400, 0.025, 6), 4, differ=True),
    "burning_quick": Case("samples of 2 or 12 ms of CPU", Tensors(800, 400, 400, 0.002, 6), 16, differ=True),
    "burning_tiny": Case("samples of 0.2 or 1.2 ms of CPU", Tensors(8_000, 400, 400, 0.0002, 6), 16, differ=True),
}


def burn(seconds: float) -> None:
    """Use so much CPU time in this thread."""
    if seconds:
        until = time.thread_time() + seconds
        while time.thread_time() < until:
            pass


def peers(case: Case) -> Callable[[bool], Iterator[Line]]:
    """Return what measures a case: whole epochs, workers' start and end included, the loaders in turns."""

    def measure(quick: bool) -> Iterator[Line]:
        ours: dict[str, Callable[..., Any]] = {"ours": SampleAwareDataLoader, "seed_samples=False": _UNSEEDED}
        arms = ours | {"PyTorch": DataLoader, "in_order=False": partial(DataLoader, in_order=False)}
        _epoch_s(arms["ours"], case)  # imports and compiles once
        names = list(arms)
        rounds: list[dict[str, float]] = []
        cpu: list[dict[str, float]] = []
        for turn in range(_QUICK_TURNS if quick else _TURNS):
            # Each comes as often first as last.
            order = names[turn % len(names) :] + names[: turn % len(names)]
            times = {name: _epoch_s(arms[name], case) for name in order}
            rounds.append({name: times[name][0] for name in names})
            cpu.append({name: times[name][1] for name in names})
        bound_s = _bound_s(case)
        for peer, our in product(names[len(ours) :], ours):
            ahead = case.differ and peer == "in_order=False"
            ratios = [each[peer] / each[our] for each in rounds]
            other_s, our_s = (median(each[name] for each in rounds) for name in (peer, our))
            other_cpu_s, our_cpu_s = (median(each[name] for each in cpu) for name in (peer, our))
            times = f"{other_s:.2f} and {our_s:.2f} s, bound {bound_s:.2f} s"
            what = f"{case.what}, {case.workers} workers: epoch of {peer} over {our}"
            asked = f"{'>' if ahead else '>='} {RATIO_LEAST:g}"
            words = f"{times}; CPU {other_cpu_s:.2f} and {our_cpu_s:.2f} s"
            raw = {"seconds": rounds, "cpu_s": cpu} if (peer, our) == ("PyTorch", "ours") else {}
            yield judge_ratios(what, asked, ratios, words, 2, **raw)

    return measure


def _epoch_s(kind: Callable[..., Any], case: Case) -> tuple[float, float]:
    """Return what an epoch takes, and the CPU time of all its processes, which neighbours move far less."""
    loader = kind(case.dataset, case.batch, True, num_workers=case.workers, collate_fn=case.collate)
    began, cpu_s = time.perf_counter(), _cpu_s()
    seen: list[int] = []
    for batch in loader:
        seen += batch[:, 0].tolist()
    took_s = time.perf_counter() - began
    del loader
    assert sorted(seen) == list(range(len(case.dataset))), "a sample is missing or came twice"
    return took_s, _cpu_s() - cpu_s


def _cpu_s() -> float:
    """Return the CPU time of this process and of those of its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _bound_s(case: Case) -> float:
    """Return what samples and collations take in a plain loop, shared by all workers.

    Where memory is what costs, a loader that uses its memory again may be below it.
    """
    collate: Callable[[Any], Any] = case.collate or default_collate
    threads, began, cpu = torch.get_num_threads(), time.perf_counter(), time.process_time()
    torch.set_num_threads(1)
    try:
        for batch in _batches(range(len(case.dataset)), case.batch):
            collate([case.dataset[index] for index in batch])
    finally:
        torch.set_num_threads(threads)
    cpu_s, took_s = time.process_time() - cpu, time.perf_counter() - began
    waited_s = _slept_s(case)
    cores = min(case.workers, os.cpu_count() or 1)
    # A core's time cannot be shared by more workers than there are cores; waits can. Waits of others do not count.
    return max(cpu_s / cores, min(took_s, cpu_s + waited_s) / case.workers)


def _slept_s(case: Case) -> float:
    """Return how long all collations of a case sleep together."""
    return (case.collate.sleep_s if case.collate else 0.0) * -(-len(case.dataset) // case.batch)


def _batches(indices: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    return (indices[start : start + size] for start in range(0, len(indices), size))
