"""Advice against a grid that it has not seen: regret, error of predicted epochs, and what its 90 % intervals hold.

Each case is a workload at a distance, on all processors or on one. First `harness.advise` gives its advice. Then every
loader is measured with three settings or more on whole epochs, which are longer than the advice's probes. The
advised one, the one in use and those within 10 % of the best are measured once more. Regret is the time of the advised
choice over that of the best of the grid. Peers are torch's default, a worker a processor, and random search with
halving in as many probes as the advice made, of which the grid's rows say what it would have found.

The part `all` sums up the cases that are kept. Prints a line per demand (asked, measured, verdict); exits 1 when one
falls short. `--quick` has one case. Needs what `python -m harness.testbed doctor` says for distances.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import random
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
from bench import Line, at_least, at_most, make_parser, run
from raw_runs import load_parts
from rich.console import Console

from harness.advise.model import Findings
from harness.advise.probe import Prober
from harness.advise.question import Choice, read_question
from harness.run.progress import RunProgress

WORKLOADS = {
    "resnet50": (1600, []),
    "unet3d": (96, []),
    "rnnt": (720, ["accelerator.seconds_per_sample=0.004"]),
    "mask_rcnn": (192, ["workload.batch_size=8", "accelerator.seconds_per_sample=0.015"]),
}
"""Those of the grid, with their samples, of which far ones have two thirds, and their overrides."""
REGIMES = {"local": (1, 2, 4), "lan_10ms": (4, 12, 32), "wan_30ms": (4, 16, 48)}
"""With the numbers of files that are read at once."""
ONE_CORE = ("resnet50", "rnnt")
"""Also advised on with one processor, for local files."""
BUDGET_S = 150
NEAR = 1.1
"""Choices within this factor of the best one are measured again."""
DRAWS = 2000


def main() -> int:
    """Measure and print; return the exit status."""
    each: list[tuple[str, str, int | None]] = [(workload, regime, None) for workload in WORKLOADS for regime in REGIMES]
    each += [(workload, "local", 1) for workload in ONE_CORE]
    cases = {name_case(*case): partial(measure, *case) for case in each}
    options = make_parser(__doc__, "resnet50 on local files", [*cases, "all"]).parse_args()
    if options.quick:
        options.only = options.only or ["resnet50, local"]
    return run({**cases, "all": partial(sum_up, options)}, options)


def name_case(workload: str, regime: str, cores: int | None) -> str:
    """Return the name of a case."""
    return f"{workload}, {regime}" + (", 1 core" if cores else "")


def measure(workload: str, regime: str, cores: int | None) -> Iterator[Line]:
    """Have advice of a case, then measure its grid."""
    with tempfile.TemporaryDirectory(prefix="joulefeed-advise-") as name, restricted(cores):
        samples, overrides = WORKLOADS[workload]
        samples = samples if regime == "local" else samples * 2 // 3
        words = [f"workload={workload}", f"regime={regime}", "loader.num_workers=2", f"results_dir={name}"]
        question = read_question([*words, f"budget_s={BUDGET_S}", f"dataset.samples={samples}", *overrides])
        with RunProgress(Console(stderr=True)) as progress:
            prober = Prober(question, Path(name), progress)
            found = prober.run()
            epochs_s = measure_grid(prober, found, REGIMES[regime])
    yield judge(name_case(workload, regime, cores), found, epochs_s)


@contextlib.contextmanager
def restricted(cores: int | None) -> Iterator[None]:
    """Let this process, and what it starts, use the first processors alone."""
    every = os.sched_getaffinity(0)
    if cores:
        os.sched_setaffinity(0, sorted(every)[:cores])
    try:
        yield
    finally:
        os.sched_setaffinity(0, every)


def measure_grid(prober: Prober, found: Findings, readers: Sequence[int]) -> dict[str, list[float]]:
    """Return the whole epochs, s, of the choices that were probed and of every loader with each number of readers."""
    chosen = {one.choice: None for one in found.ranked}
    # Those of peers; without workers a far epoch takes minutes.
    numbers = [found.place.cores] if found.place.rtt_s else [0, found.place.cores]
    chosen |= {Choice("pytorch").but(num_workers=number): None for number in numbers}
    for choice in prober.question.others:
        plain = Choice(choice.loader)
        key = prober.question.spec(plain).readers
        settings = [{key: number} for number in readers] if key else [{}, {"num_threads": 1}, {"num_threads": 3}]
        chosen |= dict.fromkeys(plain.but(**setting) for setting in settings)
    epochs_s = dict(prober.verify([*chosen], repeats=1))
    kept = {advised(found), found.in_use.key}
    best_s = min(map(median, epochs_s.values()))
    near = [one for one in chosen if one.key in kept or median(epochs_s.get(one.key, [math.inf])) <= NEAR * best_s]
    for key, more in prober.verify(near, repeats=1).items():
        epochs_s[key] = [*epochs_s.get(key, []), *more]
    return epochs_s


def advised(found: Findings) -> str:
    """Return the key of the choice that the advice is for."""
    return found.ranked[0].choice.key if found.decide() == "change" else found.in_use.key


def judge(name: str, found: Findings, epochs_s: Mapping[str, Sequence[float]]) -> Line:
    """Return the line of a case, with all that the sum is made of."""
    grid = {key: median(each) for key, each in epochs_s.items()}
    key, best = advised(found), min(grid, key=grid.__getitem__)
    said = {one.choice.key: one.epoch_s(found.place, found.scatter) for one in found.ranked}
    errors = {each: said[each].value / grid[each] - 1 for each in said if each in grid}
    held = {each: said[each].low <= grid[each] <= said[each].high for each in errors}
    regrets = {each: epoch_s / grid[best] - 1 for each, epoch_s in grid.items()}
    regret = regrets[key]
    own = grid[key] / grid[found.in_use.key] - 1
    text = f"{found.decide()}: {key}, {regret:.1%} over {best}; {own:+.0%} on the own; {found.seconds:.0f} s"
    raw: dict[str, Any] = {"seconds": found.seconds, "best": best, "advised": key, "regret": regret, "own": own}
    peers = {
        "torch's default": regrets.get("pytorch_num_workers_0"),
        "a worker a processor": regrets.get(f"pytorch_num_workers_{found.place.cores}"),
        "random, halving": search(grid, len(found.candidates), found.scatter),
    }
    raw |= {"errors": errors, "held": held, "peers": peers, "grid": dict(epochs_s), "scatter": found.scatter}
    return at_most(f"{name}: regret", 0.08, regret, text, ".0%", **raw)


def search(grid: Mapping[str, float], cells: int, scatter: float) -> float:
    """Return the mean regret of random search with halving, in as many probes as the advice made.

    Half of the probes are of choices at random, a quarter of the better half of them again, and so on.
    """
    draw = random.Random(0)
    best, regrets = min(grid.values()), []
    for _ in range(DRAWS):
        left = draw.sample(sorted(grid), min(len(grid), max(1, cells // 2)))
        seen: dict[str, list[float]] = {key: [] for key in left}
        while len(left) > 1:
            for key in left:
                seen[key].append(grid[key] * math.exp(draw.gauss(0, scatter)))
            left = sorted(left, key=lambda key: fmean(seen[key]))[: -(-len(left) // 2)]
        regrets.append(grid[left[0]] / best - 1)
    return fmean(regrets)


def sum_up(options: argparse.Namespace) -> Iterator[Line]:
    """Judge all cases that are kept."""
    parts = {name: part for name, part in load_parts(options.results, "advise").items() if part and name != "all"}
    raws = {name: part["lines"][0]["raw"] for name, part in parts.items()}
    if not raws:
        return
    regrets = [raw["regret"] for raw in raws.values()]
    yield at_most("regret, median", 0.02, median(regrets), f"{median(regrets):.1%} of {len(regrets)} cases", ".0%")
    high = float(np.quantile(regrets, 0.95))
    yield at_most("regret, 95 % of cases", 0.08, high, f"{high:.1%}", ".0%")
    errors = [abs(error) for raw in raws.values() for error in raw["errors"].values()]
    yield at_most(
        "error of a predicted epoch, median", 0.07, median(errors), f"{median(errors):.1%} of {len(errors)}", ".0%"
    )
    high = float(np.quantile(errors, 0.95))
    yield at_most("error of a predicted epoch, 95 %", 0.20, high, f"{high:.1%}", ".0%")
    held = fmean(float(each) for raw in raws.values() for each in raw["held"].values())
    is_met = 0.85 <= held <= 0.95
    yield Line("90 % intervals that hold the epoch", "85 to 95 %", f"{held:.0%}", is_met, {"value": held})
    own = max(raw["own"] for raw in raws.values())
    yield at_most("over the loader in use, worst case", 0.02, own, f"{own:+.1%}", ".0%")
    for peer in next(iter(raws.values()))["peers"]:
        beaten = [raw["regret"] - raw["peers"][peer] for raw in raws.values() if raw["peers"][peer] is not None]
        if beaten:
            share, worst = fmean(float(each <= 0) for each in beaten), max(beaten)
            text = f"{share:.0%} of {len(beaten)}; at worst {worst:+.1%}"
            yield at_least(f"as good as {peer} or better", 0.9, share, text, ".0%", worst=worst)
    seconds = max(raw["seconds"] for raw in raws.values())
    yield at_most("seconds of probing, most", 180, seconds, f"{seconds:.0f}", ".0f")


if __name__ == "__main__":
    sys.exit(main())
