"""How much of MinatoLoader's lead over PyTorch is better scheduling, and how much is more workers."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from bench import Line
from sample_aware_epochs import WORKERS, Arm, speech, unet

MOST_WORKERS = 32
"""Of a GPU on the paper's machine: its workers may be as many as there are cores (section 4.3), 128 for 4 GPUs."""
_SETTLING_EPOCHS = 12
"""At most, until the scheduler no longer adds workers."""


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
