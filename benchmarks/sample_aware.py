"""The sample-aware loader against the work-conserving bound, and PyTorch beside it with the same workers.

A bound is what all samples take together in their transforms, in seconds, over the number of workers: no loader of as
many workers is faster. It is taken by the workers' own clocks, and by the times that the steps are set to. Steps sleep,
as `loaders.pipeline.synthetic_load` says why, in a hundredth to some hundredths of the paper's times. `columns` shows
which part of the paper's factors comes from better scheduling and which from more workers.
The parts from `equal` to `burning_tiny` compare whole epochs with PyTorch's, in order and with `in_order=False`, where
samples are small, large, of varying length, costly to collate, or busy on every core. Prints a line per demand (asked,
measured, verdict) and exits 1 when one falls short. `--quick` takes some ten minutes.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median

from bench import Line, at_least, judge_ratios, make_parser, run
from sample_aware_cost import cost
from sample_aware_epochs import WORKERS, Arm, Nap, bare_epoch_s, bound_s, speech, unet
from sample_aware_peers import CASES, peers

from loaders.pipeline.synthetic_load import LightStep

BOUND_MOST = 1.03
BEHIND_MOST = 1.02
LINEAR_LEAST = 0.95
MOST_WORKERS = 32
"""Of a GPU on the paper's machine: its workers may be as many as there are cores (section 4.3), 128 for 4 GPUs."""
_SETTLING_EPOCHS = 12
"""At most, until the scheduler no longer adds workers."""


def bound(quick: bool) -> Iterator[Line]:
    """How far from the bounds, and how long until the first batch; ours, PyTorch's and bare processes take turns."""
    # What a sample costs does not depend on its time: with half of the times, the shares above them are twice as large.
    cases = {"Speech-3s": speech(3, 0.04), "Speech-10s": speech(10, 0.02), "3D-UNet": unet(0.12)}
    count, turns = 2400, 3 if quick else 5
    for name, transforms in cases.items():
        set_s = bound_s(transforms, count, WORKERS)
        ours, theirs = Arm(True, transforms, count), Arm(False, transforms, count)
        rounds = [(ours.epoch(), theirs.epoch(), bare_epoch_s(transforms, count)) for _ in range(turns)]
        bare = [bare_s for *_, bare_s in rounds]
        raw = {"set_s": set_s, "ours": [mine for mine, *_ in rounds], "pytorch": [other for _, other, _ in rounds]}
        clocked = [WORKERS * mine.seconds / mine.work_s for mine, *_ in rounds]
        yield judge_ratios(f"{name}: epoch over the workers' clocked time", f"<= {BOUND_MOST}", clocked)
        over_set = [mine.seconds / set_s for mine, *_ in rounds]
        bare_over_set, other_over_set = median(bare) / set_s, median(other.seconds for _, other, _ in rounds) / set_s
        words = f"bare processes {bare_over_set:.3f}, PyTorch {other_over_set:.3f}"
        yield judge_ratios(f"{name}: epoch over the steps' set time", f"<= {BOUND_MOST}", over_set, words, **raw)
        over_bare = [mine.seconds / bare_s for mine, _, bare_s in rounds]
        what = f"{name}: epoch over that of bare processes, which load nothing"
        yield judge_ratios(what, f"<= {BOUND_MOST}", over_bare, bare_s=bare)
        firsts = [mine.first_s / other.first_s for mine, other, _ in rounds]
        yield judge_ratios(f"{name}: first batch over PyTorch's", "<= 0.5", firsts, digits=2)


def shares(quick: bool) -> Iterator[Line]:
    """Speech-3s with 0 to 100 % heavy samples (figure 12), beside PyTorch.

    Epochs are of whole rounds of batches, so that none of PyTorch's workers is without one in the last round: that
    would be counted against it where all samples take the same time. Both take turns.
    """
    count, turns = (1152 if quick else 2304), 3
    # As short as 11 ms in all at 0 %, where what a loader does for a sample weighs most; the paper's last 500 ms.
    for percent, scale in ((0, 0.02), (0, 0.1), (25, 0.01), (50, 0.01), (75, 0.01), (100, 0.01)):
        transforms = speech(3, scale, percent / 100)
        samples = count if scale < 0.1 else count // 4
        ours, theirs = Arm(True, transforms, samples), Arm(False, transforms, samples)
        pairs = [(ours.epoch().seconds, theirs.epoch().seconds) for _ in range(turns)]
        ratios = [one / other for one, other in pairs]
        seconds, other_s = (median(each) for each in zip(*pairs, strict=True))
        most = BEHIND_MOST if percent in (0, 100) else 1.0
        more = f"{seconds:.2f} and {other_s:.2f} s, bound {bound_s(transforms, samples, WORKERS):.2f} s"
        what = f"{percent} % slow samples, times x {scale:g}: epoch over PyTorch's"
        yield judge_ratios(what, f"<= {most:g}", ratios, more, pairs_s=pairs)


def columns(quick: bool) -> Iterator[Line]:
    """PyTorch's epoch over ours: with its number of workers, and with the scheduler on from that number upwards.

    Nothing is trained: the batch queue runs empty, as it does in the paper where loading is the bottleneck, and the
    scheduler adds workers up to its most. It is measured when it has. All three take turns.
    """
    cases = {
        "Speech-3s": (speech(3, 0.04), "3.5 to 5.5"),
        "Speech-10s": (speech(10, 0.02), "3.5 to 5.5"),
        "3D-UNet": (unet(0.1), "2.5"),
    }
    count, turns = (576, 1) if quick else (1152, 3)
    for name, (transforms, paper) in cases.items():
        theirs, equal = Arm(False, transforms, count), Arm(True, transforms, count)
        grown = Arm(True, transforms, count, most_workers=MOST_WORKERS)
        for _ in range(_SETTLING_EPOCHS):
            before = grown.workers
            grown.epoch()
            if grown.workers in (before, MOST_WORKERS):
                break
        rounds = [(theirs.epoch().seconds, equal.epoch().seconds, grown.epoch().seconds) for _ in range(turns)]
        other_s, equal_s, grown_s = (median(each) for each in zip(*rounds, strict=True))
        first = median(one / two for one, two, _ in rounds)
        second = median(one / three for one, _, three in rounds)
        words = f"{first:.2f} ({other_s:.2f} and {equal_s:.2f} s)"
        raw = {"seconds": rounds, "workers": grown.workers}
        yield Line(f"{name}: PyTorch's epoch over ours, {WORKERS} workers each", "", words, raw=raw)
        yield Line(
            f"{name}: the same with the scheduler on",
            "",
            f"{second:.2f} ({grown_s:.2f} s with {grown.workers} workers) = {first:.2f} by scheduling x "
            f"{second / first:.2f} by {grown.workers / WORKERS:.2f} times the workers; paper {paper}",
        )


def scaling(quick: bool) -> Iterator[Line]:
    """Samples a second with more and more workers, each of whose samples sleeps."""
    alone = 0.0
    for workers in (1, 2, 8, 32, 128):
        transforms = [Nap(LightStep(0.05, 0.5), "First"), Nap(LightStep(0.05, 0.5), "Second")]
        count = (40 if quick else 100) * workers
        took_s = Arm(True, transforms, count, workers=workers).epoch().seconds
        each = count / took_s / workers
        alone = alone or each
        words = f"{each / alone:.3f} ({count / took_s:.0f} samples/s)"
        yield at_least(
            f"{workers} workers: samples/s a worker over one's", LINEAR_LEAST, each / alone, words, per_s=each
        )


PARTS: dict[str, Callable[[bool], Iterator[Line]]] = {
    **{each.__name__: each for each in (bound, shares, columns, cost, scaling)},
    **{name: peers(case) for name, case in CASES.items()},
}


def main() -> int:
    """Measure and print; return the exit status."""
    options = make_parser(__doc__, "fewer samples", PARTS).parse_args()
    # More workers than processors are meant: they sleep.
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    warnings.filterwarnings("ignore", message="the dataset does all")
    parts = {name: partial(part, options.quick) for name, part in PARTS.items()}
    return run(parts, options, widths=(58, 12, 78))


if __name__ == "__main__":
    sys.exit(main())
