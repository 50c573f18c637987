"""Places on an axis of loaders and regimes: regimes side by side, a gap between loaders."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.report.folder import Results
from harness.report.labels import regime_labels, rtt
from harness.report.published import PaperFigure
from harness.report.summary import Group, find

__all__ = ["Slot", "our_slots", "paper_slots"]

LOADER_STEP = 1.9
"""From the last regime of a loader to the first of the next, in steps between regimes."""


@dataclass(frozen=True, slots=True, eq=False)
class Slot:
    """One loader in one regime."""

    x: float
    loader: str
    label: str
    paper_rtt_ms: float | None = None
    """The paper's regime, in a panel of the paper."""
    group: Group | None = None
    """What was measured, in a panel of ours."""


def our_slots(results: Results, groups: Sequence[Group], workload: str) -> tuple[Slot, ...]:
    """Return a slot for every loader and regime of the run."""
    labels = regime_labels(results)
    return _placed(
        Slot(0.0, loader, labels[regime].replace(", ", "\n"), group=find(groups, workload, regime, loader))
        for loader in results.loaders
        for regime in results.regimes
    )


def paper_slots(results: Results, paper: PaperFigure) -> tuple[Slot, ...]:
    """Return a slot for every loader of the paper that the run has, in the regimes that both have.

    Where they have no regime in common, all of the paper's are taken. Empty where the paper's text has no values.
    """
    matching = (
        paper.matching_rtt_ms(
            results.rtt_ms(regime), local=results.is_local(regime), disturbed=any(results.disturbance(regime))
        )
        for regime in results.regimes
    )
    regimes = [rtt_ms for rtt_ms in dict.fromkeys(matching) if rtt_ms is not None] or paper.rtt_ms
    return _placed(
        Slot(0.0, loader, rtt(rtt_ms) if rtt_ms else "local", paper_rtt_ms=rtt_ms)
        for loader in results.loaders
        if loader in paper.epoch_s
        for rtt_ms in regimes
        if rtt_ms in paper.epoch_s[loader]
    )


def _placed(slots: Iterable[Slot]) -> tuple[Slot, ...]:
    placed: list[Slot] = []
    for slot in slots:
        last = placed[-1] if placed else None
        step = 0.0 if last is None else 1.0 if last.loader == slot.loader else LOADER_STEP
        x = step + (last.x if last else 0.0)
        placed.append(Slot(x, slot.loader, slot.label, slot.paper_rtt_ms, slot.group))
    return tuple(placed)
