"""The order as a pure function of what was measured and declared."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loaders.errors import LoaderConfigError
from loaders.pecan import Kind, auto_order, reorder
from loaders.pecan.order import commute
from loaders.pipeline.audio import FilterBank, FrameSplicing, Pad, PermuteAudio, SpecAugment
from loaders.pipeline.augment3d import Cast, RandomFlip
from loaders.pipeline.synthetic_load import HeavyStep, LightStep


def measured(*factors: float, base: int = 20_000) -> np.ndarray:
    """Bytes of five samples of `base` bytes when every transform multiplies them."""
    after = np.round(base * np.cumprod((1.0, *factors))).astype(np.int64)
    return np.stack([np.stack((after[:-1], after[1:]), axis=1)] * 5)


def names(order: Any, transforms: Any) -> list[str]:
    return [transforms[index].name for index in order.chosen]


def test_an_inflationary_transform_goes_behind_all_that_it_may_pass_and_others_stay() -> None:
    steps = (Pad(), SpecAugment(), FilterBank(), FrameSplicing(), PermuteAudio(), LightStep(), HeavyStep())
    order = auto_order(steps, measured(1.02, 1.6, 0.3, 1, 1, 1, 1))
    assert names(order, steps) == [*(step.name for step in steps[1:]), "Pad"]
    pad, augment, bank, *_ = order.placed
    assert (pad.kind, pad.before, pad.after, pad.reason) == (Kind.INFLATIONARY, 1, 7, "moved: to the end")
    assert augment.reason == "stays: not declared to commute with FilterBank"
    assert bank.reason == "stays: not declared to commute with SpecAugment"


def test_without_a_declaration_nothing_is_moved(Times: Any) -> None:
    steps = (Times(2, "Grow"), Times(1, "Same"), Times(0.5, "Shrink"))
    order = auto_order(steps, measured(2, 1, 0.5))
    assert not order.changes and order.chosen == (0, 1, 2)
    assert "Same" in order.placed[0].reason


def test_one_declaration_of_the_two_is_enough_and_deflationary_goes_first(Times: Any) -> None:
    steps = (Times(1, "Same"), Times(0.5, "Shrink", frozenset({"Same"})))
    assert names(auto_order(steps, measured(1, 0.5)), steps) == ["Shrink", "Same"]
    steps = (Times(1, "Same", frozenset({"Shrink"})), Times(0.5, "Shrink"))
    assert names(auto_order(steps, measured(1, 0.5)), steps) == ["Shrink", "Same"]


def test_a_barrier_is_not_passed_whatever_is_declared(Times: Any) -> None:
    steps = (Times(2, "Grow", frozenset({"Same", "Wall", "Far"})), Times(1, "Same"), Times(1, "Wall", barrier=True))
    steps += (Times(1, "Far"),)
    order = auto_order(steps, measured(2, 1, 1, 1))
    assert names(order, steps) == ["Same", "Grow", "Wall", "Far"]
    assert order.placed[0].reason == "moved: up to the barrier Wall"


def test_transforms_of_one_kind_keep_their_order(Times: Any) -> None:
    everything = frozenset({"Grow", "More", "Same"})
    steps = (Times(2, "Grow", everything), Times(3, "More", everything), Times(1, "Same"))
    order = auto_order(steps, measured(2, 3, 1))
    assert names(order, steps) == ["Same", "Grow", "More"]
    # There is nothing to gain from passing one's own kind.
    assert not auto_order(steps[:2], measured(2, 3)).changes


def test_what_could_not_be_measured_is_left_as_it_is() -> None:
    steps = (RandomFlip(), Cast())
    order = auto_order(steps, np.empty((0, 2, 2)), "sample 3 cannot be read")
    assert not order.changes and "sample 3 " in order.placed[0].reason
    assert reorder(type("P", (), {"transforms": steps})(), order).transforms == steps


def test_a_declaration_that_is_no_set_of_names_and_an_order_for_other_transforms_are_refused(Times: Any) -> None:
    with pytest.raises(LoaderConfigError, match=r"Grow.commutes_with='Same'"):
        auto_order((Times(2, "Grow", "Same"), Times(1, "Same")), measured(2, 1))
    order = auto_order((Times(2, "Grow"),), measured(2))
    with pytest.raises(LoaderConfigError, match=r"Grow.* Same"):
        reorder(type("P", (), {"transforms": (Times(1, "Same"),)})(), order)


def test_the_table_has_a_line_for_every_transform() -> None:
    steps = (Pad(), LightStep())
    lines = str(auto_order(steps, measured(1.5, 1))).splitlines()
    assert lines[0].split() == ["transform", "bytes", "in", "bytes", "out", "factor", "class", "from", "to", "why"]
    assert lines[1].split()[:6] == ["Pad", "20,000", "30,000", "1.5", "inflationary", "1"]
    assert lines[2].endswith("stays: it changes no bytes")


NAMES = "ABCDEF"


@st.composite
def pipelines(draw: Any) -> tuple[Any, list[float]]:
    count = draw(st.integers(1, 6))
    kinds = draw(st.lists(st.sampled_from((0.5, 1.0, 2.0)), min_size=count, max_size=count))
    partners = [frozenset(draw(st.sets(st.sampled_from(NAMES)))) for _ in range(count)]
    barriers = [draw(st.integers(0, 5)) == 0 for _ in range(count)]
    return [
        type(name, (), {"name": name, "commutes_with": their, "barrier": wall})()
        for name, their, wall in zip(NAMES, partners, barriers, strict=False)
    ], kinds


@settings(max_examples=60, deadline=None)
@given(pipelines())
def test_only_declared_pairs_change_places_and_none_across_a_barrier(drawn: Any) -> None:
    steps, factors = drawn
    order = auto_order(steps, measured(*factors))
    assert sorted(order.chosen) == list(range(len(steps)))
    for at, late in enumerate(order.chosen):
        for early in order.chosen[at + 1 :]:
            if early < late:  # the later one of the pipeline now comes first
                assert commute(steps[early], steps[late])
                assert not steps[early].barrier and not steps[late].barrier
                assert factors[early] >= factors[late] or 1.0 not in (factors[early], factors[late])
