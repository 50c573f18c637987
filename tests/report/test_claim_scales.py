"""Every claim is judged at a scale of a shipped experiment, or its reason names the hardware that it needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cache

import pytest

from harness.report.claims.reader import make_definitions
from tests.report.reach import Why, find_best, list_asked, read_scales

pytestmark = pytest.mark.process  # they take seconds
IN_NO_SCALE = {
    "emlio_fig9_constant_duration_s": "no step of VGG-19 is published, and an assumed one may make an epoch constant",
    "emlio_fig7_slower_when_near": "the link is not faster than a serialising thread, as the paper's is",
    "emlio_fig8_throughput_0.1ms": "the link is not faster than one stream, as the paper's is",
    "emlio_fig8_throughput_1ms": "the link is not faster than one stream, as the paper's is",
}
"""Claims that no scale judges, on whatever machine, and why."""


def test_there_are_experiments_of_every_figure_that_claims_are_of() -> None:
    asked = {one.figure for (name, _), made in read_scales().items() for one in list_asked(name, made)}
    assert asked == {one.figure for one in make_definitions()}


@cache
def find_all(scale: str) -> Mapping[str, tuple[Why, str]]:
    """Return for every claim whether a scale judges it, and why not."""
    return {one.id: find_best(one, scale) for one in make_definitions()}


def test_every_claim_is_judged_at_some_scale_or_names_the_hardware_that_it_needs() -> None:
    small, full = find_all("small"), find_all("full")
    unjudged = {name: reason for name, (why, reason) in small.items() if why == full[name][0] == "config"}
    assert unjudged.keys() == IN_NO_SCALE.keys(), unjudged


def test_two_of_three_claims_are_judged_in_small_without_a_gpu_or_sensors() -> None:
    every = Counter(why for why, _ in find_all("small").values())
    assert every["judged"] >= 125, every
