"""How much distance costs a loader: its epoch far away over its epoch in the nearest regime."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.report.folder import Results
from harness.report.published import figure_of
from harness.report.summary import Group, find, ratio

__all__ = ["Slowdown", "slowdowns"]


@dataclass(frozen=True, slots=True)
class Slowdown:
    """One loader in one regime against the same loader in the nearest one."""

    loader: str
    regime: str
    near: str
    """The nearest regime, the one that counts as 1."""
    ours: float | None
    """Ratio of the medians; None when either is missing."""
    paper: float | None
    """The same ratio of the paper's figure; None where the paper has no such loader or regime."""
    trusted: bool
    """Whether both medians come from valid rows."""


def slowdowns(results: Results, groups: Sequence[Group], workload: str) -> tuple[Slowdown, ...]:
    """Return the slowdowns of one workload, loader by loader, for every regime but the nearest."""
    if len(results.regimes) < 2:
        return ()
    near = results.regimes[0]
    return tuple(
        _slowdown(results, groups, workload, loader, near, far)
        for loader in results.loaders
        for far in results.regimes[1:]
    )


def _slowdown(results: Results, groups: Sequence[Group], workload: str, loader: str, near: str, far: str) -> Slowdown:
    at_near = find(groups, workload, near, loader)
    at_far = find(groups, workload, far, loader)
    ours = ratio(at_far.time_s, at_near.time_s) if at_near and at_far else None
    paper = figure_of(results)
    known = [
        paper.seconds(
            loader,
            paper.matching_rtt_ms(
                results.rtt_ms(regime), local=results.is_local(regime), disturbed=any(results.disturbance(regime))
            ),
        )
        for regime in (near, far)
        if workload == paper.workload
    ]
    theirs = known[1] / known[0] if len(known) == 2 and known[0] and known[1] else None
    trusted = bool(at_near and at_far and at_near.trusted and at_far.trusted)
    return Slowdown(loader, far, near, ours, theirs, trusted)
