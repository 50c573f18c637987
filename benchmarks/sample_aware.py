"""The sample-aware loader against the work-conserving bound, and PyTorch beside it with the same workers.

The bound is what all samples took together in their transforms, in seconds, over the number of workers: no loader of
as many workers is faster. Steps sleep, as `loaders.pipelines.synthetic_load` says why, in a hundredth or two of the
paper's times. `columns` shows which part of the paper's factors comes from better scheduling and which from more
workers.
The parts from `equal` to `burning_tiny` compare whole epochs with PyTorch's, in order and with `in_order=False`, where
samples are small, large, of varying length, costly to collate, or busy on every core. Prints a line per demand (asked,
measured, verdict) and exits 1 when one falls short. `--quick` takes some ten minutes.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from itertools import chain
from statistics import median

from bench import Line, at_least, at_most, make_parser, run, spread
from sample_aware_cost import cost
from sample_aware_epochs import WORKERS, Arm, Nap, bound_s, speech, unet
from sample_aware_peers import CASES, peers

from loaders.pipelines.synthetic_load import LightStep

BOUND_MOST = 1.03
BEHIND_MOST = 1.02
LINEAR_LEAST = 0.95
MOST_WORKERS = 32
"""Of a GPU on the paper's machine: its workers may be as many as there are cores (section 4.3), 128 for 4 GPUs."""
_SETTLING_EPOCHS = 12
"""At most, until the scheduler no longer adds workers."""


def bound(quick: bool) -> Iterator[Line]:
    """How far from the bound, and how long until the first batch."""
    cases = {
        "Speech-3s": (speech(3, 0.02), 2400),
        "Speech-10s": (speech(10, 0.01), 2400),
        "3D-UNet": (unet(0.03), 2400),
    }
    for name, (transforms, usual) in cases.items():
        count = usual // 2 if quick else usual
        set_s = bound_s(transforms, count, WORKERS)
        ours, theirs = Arm(True, transforms, count).epoch(), Arm(False, transforms, count).epoch()
        ratio = WORKERS * ours.seconds / ours.work_s
        words = f"{ratio:.3f} ({ours.seconds:.2f} s; over the steps' set times {ours.seconds / set_s:.3f}, "
        yield at_most(
            f"{name}: epoch over the bound", BOUND_MOST, ratio, f"{words}PyTorch {theirs.seconds / set_s:.3f})"
        )
        first = ours.first_s / theirs.first_s
        words = f"{first:.2f} ({1e3 * ours.first_s:.0f} and {1e3 * theirs.first_s:.0f} ms)"
        yield at_most(f"{name}: first batch over PyTorch's", 0.5, first, words)


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
        yield at_most(what, most, median(ratios), spread(ratios, more=more))


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
        yield Line(f"{name}: PyTorch's epoch over ours, {WORKERS} workers each", "", words)
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
        yield at_least(f"{workers} workers: samples/s a worker over one's", LINEAR_LEAST, each / alone, words)


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
    lines = chain.from_iterable(PARTS[name](options.quick) for name in options.only or PARTS)
    return run(lines, widths=(58, 12, 78))


if __name__ == "__main__":
    sys.exit(main())
