"""Every scale of an experiment whose epochs are large enough for its claims can decide them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

from harness.config import list_packaged
from harness.config.specs import Experiment
from harness.report.claims.definition import Definition
from harness.report.claims.reader import make_definitions
from tests.harness.configs import experiment

pytestmark = pytest.mark.process  # they take seconds
TOO_SMALL = {
    ("emlio_fig1", "small"): "PyTorch's epochs of 1000 samples at 30 ms, of three stages, take more than ten minutes",
    ("minato_fig4", "small"): "its claims need a GPU, and with one the full scale is run",
    ("minato_fig9", "small"): "so many cells of 90 samples take more than ten minutes",
    ("spdl_table2", "small"): "the claim is of a million files, as dataset.root=/data/imagenet/train has",
    ("spdl_table2", "full"): "the claim is of a million files, as dataset.root=/data/imagenet/train has",
}
"""Scales at which no claim is judged, and why."""


@cache
def read_scales() -> Mapping[tuple[str, str], Experiment]:
    """Return every experiment of which claims are made, at every scale."""
    found = {
        (name, scale): experiment(f"+experiment={name}", f"scale={scale}")
        for name, path in list_packaged("experiment").items()
        for scale in (("small", "full") if has_sizes(path) else ("small",))
    }
    return {key: one for key, one in found.items() if one.judged}


def has_sizes(path: Path) -> bool:
    """Whether an experiment has sizes."""
    return "\nsizes:" in path.read_text(encoding="utf-8")


def list_asked(name: str, made: Experiment) -> Iterator[Definition]:
    """Yield the claims that an experiment asks."""
    drawn = list_packaged("figure")
    for one in make_definitions():
        if one.figure in made.figures or (one.figure == name and name not in drawn):
            yield one


def count_samples(claim: Definition, made: Experiment) -> int:
    """Return the samples of the smallest dataset of the workloads that a claim names, of which none names all."""
    named = {one.key: one.listed for one in claim.each}.get("workload") or (claim.of.get("workload"),)
    datasets = [one for workload, one in made.datasets.items() if workload in named or named == (None,)]
    return min(int(one.params["samples"]) for one in datasets)


def test_there_are_experiments_of_every_figure_that_claims_are_of() -> None:
    asked = {one.figure for (name, _), made in read_scales().items() for one in list_asked(name, made)}
    assert asked == {one.figure for one in make_definitions()}


def test_a_scale_whose_samples_are_enough_has_the_repeats_and_settled_epochs() -> None:
    for (name, scale), made in read_scales().items():
        for claim in list_asked(name, made):
            if count_samples(claim, made) >= claim.needs.samples:
                assert made.repeats >= max(2, claim.needs.repeats), (claim.id, scale)
                assert not claim.settled or made.epochs > claim.needs.settled, (claim.id, scale)


def test_scales_that_are_too_small_for_all_of_their_claims_are_known() -> None:
    too_small = {
        (name, scale)
        for (name, scale), made in read_scales().items()
        if (claims := list(list_asked(name, made)))
        and all(count_samples(one, made) < one.needs.samples for one in claims)
    }
    assert too_small == TOO_SMALL.keys()
