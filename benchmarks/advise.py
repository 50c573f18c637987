"""Advice against a grid that it has not seen: regret, error of predicted epochs, and what its 90 % intervals hold.

Each case is a workload at a distance, on all processors or on one. First `harness.advise` gives its advice. Then every
loader is measured with three settings or more on whole epochs, which are longer than the advice's probes. The
advised one and those within 10 % of the best are measured three times. Regret is the time of the advised choice over
that of the best of the grid.

`--kept-grid` has new advice, and measures only the advised choice, those near the best and those that no grid has; the
other first epochs are those that are kept of the case.

The part `all` sums up the cases that are kept, with the advice that follows from their probes. The error that an
interval allows for is fitted, for the cases of each workload, on those of the other workloads. Peers are torch's
default, a worker a processor, random search with halving and Optuna's TPE (`advise_tpe.py`). The searches have as many
seconds as the advice's probes took, of which each trial takes an epoch of the grid, and shows that epoch with the
scatter of probes. A choice that was measured again is judged by its later epochs, which no search has seen: the
shortest of many first epochs was lucky.

The parts `spoiled` have short advice of each workload while other programs use the processors (hog), while a quota
stops the advice's own (throttle), and while another process holds the files in memory (warm cache). No probe may count,
and the advice must be that it cannot say. The part `unspoiled` has the same without any of it. Throttling and the cache
need root and control groups of version 1.

Prints a line per demand (asked, measured, verdict); exits 1 when one falls short. `--quick` has one case. Needs what
`python -m harness.testbed doctor` says for distances.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import math
import mmap
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

import numpy as np
from bench import HERE, REPO, Line, at_least, at_most, make_parser, run
from raw_runs import load_parts
from rich.console import Console

from harness.advise.model import DERIVED, PROBED, PROBED_STEP, Candidate, Findings, Place, ProbedEpoch
from harness.advise.probe import Prober
from harness.advise.question import BOUND, Choice, Question, read_question
from harness.config.targets import instantiate
from harness.run.progress import RunProgress

WORKLOADS = {
    "resnet50": (1600, []),
    "unet3d": (96, []),
    "rnnt": (720, ["accelerator.seconds_per_sample=0.004"]),
    "mask_rcnn": (192, ["workload.batch_size=8", "accelerator.seconds_per_sample=0.015"]),
}
"""Those of the grid, with their samples, of which far ones have two thirds, and their overrides."""
BATCHES = {"resnet50": 32, "unet3d": 3, "rnnt": 24, "mask_rcnn": 8}
"""Samples of a batch, of which spoiled advice has eight."""
PUBLISHED = {"resnet50": 1_281_167, "unet3d": 168, "rnnt": 281_241, "mask_rcnn": 117_266}
"""Samples of the dataset that the workload's published training has: ImageNet, KiTS19, LibriSpeech, COCO."""
REGIMES = {"local": (1, 2, 4), "lan_10ms": (4, 12, 32), "wan_30ms": (4, 16, 48)}
"""With the numbers of files that are read at once."""
ONE_CORE = ("resnet50", "rnnt")
"""Also advised on with one processor, for local files."""
IN_USE = "pytorch_num_workers_2"
"""The choice that the user has."""
BUDGET_S = 170
NEAR = 1.1
"""Choices within this factor of the best one are measured again, `AGAIN` times; at most `MOST_NEAR` of them."""
AGAIN = 2
AGAIN_NEAR = 4
"""Epochs of each of these where files are local, of which the first does not count; far ones have two."""
MOST_NEAR = 6
DRAWS = 2000
SPOILED_S = 12
"""Budget of the advice whose probes are spoiled, s."""
QUOTA = 0.4
"""Processors that a throttled advice may use."""
Z90 = 1.645


class Case(NamedTuple):
    """A case that is kept."""

    workload: str
    place: Place
    scatter: float
    candidates: Mapping[str, Candidate]
    grid: Mapping[str, float]
    """Seconds of an epoch, by choice: the median of all that were measured."""
    seen: Mapping[str, float]
    """The first epoch of each."""
    judged: Mapping[str, float]
    """The median of the later ones, where there are any."""
    loaders: Mapping[str, str]
    raw: Mapping[str, Any]

    def regret(self, key: str) -> float:
        """Return how much longer a choice takes than the best one."""
        return self.judged[key] / min(self.judged.values()) - 1

    def budget_s(self) -> float:
        """Return the seconds of the grid's epochs that the advice's probes stand for."""
        each = 1 if self.place.rtt_s else 2  # near cells have two epochs that count
        cells = {key: math.ceil(len(one.probes) / each) for key, one in self.candidates.items()}
        return sum(number * self.grid[key] for key, number in cells.items() if key in self.grid)

    def errors(self) -> dict[str, float]:
        """Return the logarithms of predicted over measured epochs, by choice."""
        known = [key for key in self.candidates if key in self.grid]
        return {key: math.log(self.candidates[key].epoch_s(self.place).value / self.grid[key]) for key in known}

    def found(self) -> Findings:
        """Return what follows from the probes that are kept."""
        own = self.candidates[IN_USE].choice
        kept: Mapping[str, Any] = {"place": self.place, "candidates": dict(self.candidates), "objective": "time"}
        return Findings(subject=self.workload, in_use=own, command="", paste=lambda _: [], **kept)

    def noise(self, key: str) -> float:
        """Return the relative error of a choice's probes, and of the epoch that is predicted, by their scatter."""
        return self.scatter * math.sqrt(1 / len(self.candidates[key].probes) + 1)

    def held(self, allowed: Mapping[bool, float]) -> list[float]:
        """Return 1 for each interval that holds its epoch, else 0, by the error beside scatter, at the step and not."""
        held = []
        for key, error in self.errors().items():
            one = self.candidates[key]
            beside = math.hypot(one.shortness * allowed[one.is_steady(self.place)], self.noise(key))
            limit = Z90 * (math.hypot(DERIVED, self.scatter) if one.is_short else beside)
            held.append(float(abs(error) <= limit))
        return held


def main() -> int:
    """Measure and print; return the exit status."""
    each: list[tuple[str, str, int | None]] = [(workload, regime, None) for workload in WORKLOADS for regime in REGIMES]
    each += [(workload, "local", 1) for workload in ONE_CORE]
    spoiled = {f"spoiled, {kind}": partial(spoil, kind) for kind in SPOILERS} | {"unspoiled": partial(spoil, "")}
    names = [name_case(*case) for case in each]
    parser = make_parser(__doc__, "resnet50 on local files", [*names, *spoiled, "all"])
    parser.add_argument("--kept-grid", action="store_true", help="measure no grid that is kept")
    options = parser.parse_args()
    kept = read_cases(options) if options.kept_grid else {}
    cases = {name: partial(measure, *case, kept.get(name)) for name, case in zip(names, each, strict=True)}
    if options.quick:
        options.only = options.only or ["resnet50, local"]
    return run({**cases, **spoiled, "all": partial(sum_up, options)}, options)


def name_case(workload: str, regime: str, cores: int | None) -> str:
    """Return the name of a case."""
    return f"{workload}, {regime}" + (", 1 core" if cores else "")


def measure(workload: str, regime: str, cores: int | None, kept: Case | None) -> Iterator[Line]:
    """Have advice of a case, then measure its grid, or of a kept one what it lacks and the choices near the best."""
    with tempfile.TemporaryDirectory(prefix="joulefeed-advise-") as name, restricted(cores):
        samples, overrides = WORKLOADS[workload]
        samples = samples if regime == "local" else samples * 2 // 3
        words = [f"workload={workload}", f"regime={regime}", "loader.num_workers=2", f"results_dir={name}"]
        question = read_question([*words, f"budget_s={BUDGET_S}", f"dataset.samples={samples}", *overrides])
        with RunProgress(Console(stderr=True)) as progress:
            prober = Prober(question, Path(name), progress)
            found = prober.run()
            loaders, epochs_s = measure_grid(prober, found, REGIMES[regime], kept)
    yield judge(
        name_case(workload, regime, cores), found, epochs_s, workload=workload, loaders=loaders, samples=samples
    )


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


def measure_grid(
    prober: Prober, found: Findings, readers: Sequence[int], kept: Case | None
) -> tuple[dict[str, str], dict[str, list[float]]]:
    """Return the loaders and the whole epochs, s, of probed choices and of every loader with each number of readers."""
    chosen = {one.choice: None for one in found.ranked}
    # Those of peers; without workers a far epoch takes minutes.
    numbers = [found.place.cores] if found.place.rtt_s else [0, found.place.cores]
    chosen |= {Choice("pytorch").but(num_workers=number): None for number in numbers}
    for choice in prober.question.others:
        plain = Choice(choice.loader)
        key = prober.question.spec(plain).readers
        settings = [{key: number} for number in readers] if key else [{}, {"num_threads": 1}, {"num_threads": 3}]
        chosen |= dict.fromkeys(plain.but(**setting) for setting in settings)
    loaders = {**kept.loaders} if kept else {}
    epochs_s, usual = {}, dict[str, float]()
    if kept:
        chosen |= {one.choice: None for one in kept.candidates.values()}
        epochs_s, usual = {key: [seen] for key, seen in kept.seen.items()}, dict(kept.grid)
    lacking = [one for one in chosen if one.key not in usual]
    for key, first in prober.verify(lacking, repeats=1).items() if lacking else ():
        epochs_s[key], usual[key] = first, first[0]
    limit_s = NEAR * min(usual.values())
    quick = [key for key in sorted(usual, key=usual.__getitem__) if usual[key] <= limit_s]
    again = {advised(found), *quick[:MOST_NEAR]}
    epochs = 2 if found.place.rtt_s else AGAIN_NEAR
    for key, more in prober.verify([one for one in chosen if one.key in again], AGAIN, epochs).items():
        epochs_s[key] = [*epochs_s.get(key, []), *more]
    return loaders | {choice.key: choice.loader for choice in chosen}, epochs_s


def advised(found: Findings) -> str:
    """Return the key of the choice that the advice is for."""
    return found.ranked[0].choice.key if found.decide() == "change" else found.in_use.key


def judge(name: str, found: Findings, epochs_s: Mapping[str, Sequence[float]], **facts: object) -> Line:
    """Return the line of a case, with all that the sum is made of."""
    grid = {key: median(each) for key, each in epochs_s.items()}
    key, best = advised(found), min(grid, key=grid.__getitem__)
    regret = grid[key] / grid[best] - 1
    own = grid[key] / grid[found.in_use.key] - 1
    text = f"{found.decide()}: {key}, {regret:.1%} over {best}; {own:+.0%} on the own; {found.seconds:.0f} s"
    raw = {"seconds": found.seconds, "decided": found.decide(), "best": best, "advised": key, "own": own, **facts}
    raw |= {"grid": epochs_s, "scatter": found.scatter, "place": found.place, "candidates": found.candidates}
    return at_most(f"{name}: regret", 0.08, regret, text, ".0%", **raw)


@contextlib.contextmanager
def hogged(_question: Question) -> Iterator[list[str]]:
    """Have two programs a processor compute."""
    hogs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        yield []
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()


@contextlib.contextmanager
def throttled(_question: Question) -> Iterator[list[str]]:
    """Make a control group with a quota; yields the words by which a command runs in it."""
    group = Path(f"/sys/fs/cgroup/cpu/joulefeed-throttled-{os.getpid()}")
    group.mkdir()
    try:
        (group / "cpu.cfs_quota_us").write_text(str(int(QUOTA * int((group / "cpu.cfs_period_us").read_text()))))
        yield ["sh", "-c", 'echo $$ >"$0" && exec "$@"', str(group / "cgroup.procs")]
    finally:
        deadline = time.monotonic() + 30
        while (group / "cgroup.procs").read_text().strip() and time.monotonic() < deadline:
            time.sleep(0.1)
        group.rmdir()


@contextlib.contextmanager
def warmed(question: Question) -> Iterator[list[str]]:
    """Hold the dataset's files in memory, locked, so that dropped caches keep them; raises OSError where it may not."""
    _, experiment = question.compose([Choice(BOUND)])
    (dataset,) = experiment.datasets.values()
    handle = instantiate(dataset.target, dataset.params).open(question.cache, lambda *_: None)
    libc, held = ctypes.CDLL(None, use_errno=True), []
    for path in filter(Path.is_file, handle.samples.root.rglob("*")):
        if size := path.stat().st_size:
            with path.open("r+b") as file:
                pages = mmap.mmap(file.fileno(), size)
            held.append(ctypes.c_char.from_buffer(pages))
            if libc.mlock(ctypes.byref(held[-1]), ctypes.c_size_t(size)):
                raise OSError(ctypes.get_errno(), f"mlock of {path}")
    yield []
    held.clear()


SPOILERS: Mapping[str, Callable[[Question], contextlib.AbstractContextManager[list[str]]]] = {
    "hog": hogged,
    "throttle": throttled,
    "warm cache": warmed,
}


def spoil(kind: str) -> Iterator[Line]:
    """Have short advice of each workload whose probes are spoiled, or, for no kind, are not."""
    found = {}
    for workload, (_, overrides) in WORKLOADS.items():
        with tempfile.TemporaryDirectory(prefix="joulefeed-spoiled-") as name:
            words = [f"workload={workload}", f"budget_s={SPOILED_S}", "loaders=[pytorch,spdl]", *overrides]
            words += [f"results_dir={name}", f"dataset.samples={8 * BATCHES[workload]}"]
            with SPOILERS[kind](read_question(words)) if kind else contextlib.nullcontext([]) as before:
                argv = [*before, sys.executable, "-m", "harness.advise", *words]
                subprocess.run(argv, cwd=REPO, stdout=subprocess.DEVNULL, check=False, timeout=900)
            (stored,) = Path(name).glob("*/advice.json")
            found[workload] = json.loads(stored.read_text())
    said = [workload for workload, advice in found.items() if advice["outcome"] != "cannot say"]
    counted = sum(len(one["probes_s"]) for advice in found.values() for one in advice["configurations"])
    text = f"{len(found) - len(said)} of {len(found)} cannot say, {counted} probes count"
    raw = {"value": counted, "advice": {key: (one["outcome"], one["spoiled"]) for key, one in found.items()}}
    if kind:
        yield Line(f"{kind}: probes refused", "all", text, not said and not counted, raw)
    else:
        yield Line("no spoiler: advice given", "all", text, len(said) == len(found), raw)


def read_cases(options: argparse.Namespace) -> dict[str, Case]:
    """Return the cases that are kept, by name."""
    first = {name: part["lines"][0] for name, part in load_parts(options.results, "advise").items() if part}
    return {name: read_case(line["raw"]) for name, line in first.items() if line["what"].endswith(": regret")}


def read_case(raw: Mapping[str, Any]) -> Case:
    """Return a case of its kept values."""
    candidates = {}
    for key, kept in raw["candidates"].items():
        probes = tuple(ProbedEpoch(**probe) for probe in kept["probes"])
        candidates[key] = Candidate(**{**kept, "choice": Choice(**kept["choice"]), "probes": probes})
    grid = {key: median(each) for key, each in raw["grid"].items()}
    seen = {key: each[0] for key, each in raw["grid"].items()}
    judged = {key: median(each[1:] or each) for key, each in raw["grid"].items()}
    place = Place(**raw["place"])
    case = Case(raw["workload"], place, 0.0, candidates, grid, seen, judged, raw["loaders"], raw)
    return case._replace(scatter=case.found().scatter)


def sum_up(options: argparse.Namespace) -> Iterator[Line]:
    """Judge all cases that are kept."""
    cases = [*read_cases(options).values()]
    if not cases:
        return
    keys = [advised(case.found()) for case in cases]
    regrets = [case.regret(key) for case, key in zip(cases, keys, strict=True)]
    yield at_most("regret, median", 0.02, median(regrets), f"{median(regrets):.1%} of {len(regrets)} cases", ".0%")
    yield of_most("regret, 95 % of cases", 0.08, regrets)
    errors = [abs(math.expm1(error)) for case in cases for error in case.errors().values()]
    text = f"{median(errors):.1%} of {len(errors)}"
    yield at_most("error of a predicted epoch, median", 0.07, median(errors), text, ".0%")
    yield of_most("error of a predicted epoch, 95 %", 0.20, errors)
    yield from judge_intervals(cases)
    own = max(case.grid[key] / case.grid[IN_USE] - 1 for case, key in zip(cases, keys, strict=True))
    yield at_most("over the loader in use, worst case", 0.02, own, f"{own:+.1%}", ".0%")
    for peer, found in peers(cases).items():
        beaten = [regret - other for regret, other in zip(regrets, found, strict=True) if other is not None]
        if not beaten:
            yield Line(f"as good as {peer} or better", ">= 90%", "not measured")
            continue
        share, worst = fmean(float(each <= 0) for each in beaten), max(beaten)
        text = f"{share:.0%} of {len(beaten)}; at worst {worst:+.1%}"
        yield at_least(f"as good as {peer} or better", 0.9, share, text, ".0%", regrets=found)
        yield at_most(f"worse than {peer}, worst case", 0.02, worst, f"{worst:+.1%}", ".0%")
    seconds = max(case.raw["seconds"] for case in cases)
    yield at_most("seconds of probing, most", 180, seconds, f"{seconds:.0f}", ".0f")
    for workload in dict.fromkeys(case.workload for case in cases):
        shares = [share_of_grid(case) for case in cases if case.workload == workload]
        text = f"{max(shares):.2%} of two epochs a choice of {PUBLISHED[workload]:,} samples"
        yield at_most(f"probing over the grid, {workload}", 0.02, max(shares), text, ".0%")


def of_most(what: str, most: float, values: Sequence[float]) -> Line:
    """Judge what 95 % of the values do not exceed."""
    high = float(np.quantile(values, 0.95))
    return at_most(what, most, high, f"{high:.1%}", ".0%")


def share_of_grid(case: Case) -> float:
    """Return the time of probing over that of the same grid on the published dataset, with two epochs a choice."""
    return case.raw["seconds"] / (2 * sum(case.grid.values()) * PUBLISHED[case.workload] / case.raw["samples"])


def judge_intervals(cases: Sequence[Case]) -> Iterator[Line]:
    """Judge how many intervals hold the epoch, with the error that they allow for fitted on other workloads."""
    held, fits = [], {}
    for workload in dict.fromkeys(case.workload for case in cases):
        allowed = fits[workload] = fit([case for case in cases if case.workload != workload])
        held += [each for case in cases if case.workload == workload for each in case.held(allowed)]
    share = fmean(held)
    text = f"{share:.0%} of {len(held)}"
    is_met = 0.85 <= share <= 0.95
    yield Line("90 % intervals that hold the epoch", "85 to 95 %", text, is_met, {"value": share, "fits": fits})
    shipped = fmean(each for case in cases for each in case.held({False: PROBED, True: PROBED_STEP}))
    yield Line("the same with what the harness allows for", "", f"{shipped:.0%}", None, {"value": shipped})
    for is_steady, found in fit(cases).items():
        what = "error that intervals allow for, fitted on all" + (", at the step" if is_steady else "")
        yield Line(what, "", f"{found:.3f}, shipped {PROBED_STEP if is_steady else PROBED}", None, {"value": found})


def fit(cases: Iterable[Case]) -> dict[bool, float]:
    """Return the relative error beside scatter with which 90 % of the intervals hold the epoch, at the step and not."""
    needed: dict[bool, list[float]] = {False: [], True: []}
    for case in cases:
        for key, error in case.errors().items():
            one = case.candidates[key]
            if one.is_short:
                continue
            beside = math.sqrt(max(0.0, (error / Z90) ** 2 - case.noise(key) ** 2))
            needed[one.is_steady(case.place)].append(beside / one.shortness)
    return {is_steady: float(np.quantile(each or [0.0], 0.9)) for is_steady, each in needed.items()}


def peers(cases: Sequence[Case]) -> dict[str, list[float | None]]:
    """Return the regret of each peer in each case; None where it is not measured."""
    searched = [search(case) for case in cases]
    return {
        "torch's default": [regret_of(case, "pytorch_num_workers_0") for case in cases],
        "a worker a processor": [regret_of(case, f"pytorch_num_workers_{case.place.cores}") for case in cases],
        "random, halving": [*searched],
        "Optuna's TPE": search_by_tpe(cases),
    }


def regret_of(case: Case, key: str) -> float | None:
    """Return the regret of a choice; None where it is not in the grid."""
    return case.regret(key) if key in case.grid else None


def search(case: Case) -> float:
    """Return the mean regret of random search with halving.

    Half of the time is for choices at random, a quarter for the better half of them again, and so on.
    """
    draw, regrets = random.Random(0), []
    for _ in range(DRAWS):
        left, spent_s = list[str](), 0.0
        for key in draw.sample(sorted(case.seen), len(case.seen)):
            spent_s += case.seen[key]
            if left and spent_s > case.budget_s() / 2:
                break
            left.append(key)
        seen: dict[str, list[float]] = {key: [] for key in left}
        while len(left) > 1:
            for key in left:
                seen[key].append(case.seen[key] * math.exp(draw.gauss(0, case.scatter)))
            left = sorted(left, key=lambda key: fmean(seen[key]))[: -(-len(left) // 2)]
        regrets.append(case.regret(left[0]))
    return fmean(regrets)


def search_by_tpe(cases: Sequence[Case]) -> list[float | None]:
    """Return the mean regret of Optuna's TPE, which uv runs, in each case; None without uv."""
    uv = shutil.which("uv") or shutil.which("uv", path=str(REPO / ".venv-uv/bin"))
    if uv is None:
        return [None] * len(cases)
    asked = [
        {"seen": c.seen, "judged": c.judged, "loaders": c.loaders, "budget_s": c.budget_s(), "scatter": c.scatter}
        for c in cases
    ]
    argv = [uv, "run", "--quiet", "--no-project", "--script", str(HERE / "advise_tpe.py")]
    found = subprocess.run(argv, input=json.dumps(asked), stdout=subprocess.PIPE, text=True, check=True, timeout=1800)
    return [*json.loads(found.stdout)]


if __name__ == "__main__":
    sys.exit(main())
