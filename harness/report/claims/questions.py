"""Questions that several of the paper's figures ask: of constancy over distance, and of factors between loaders."""

from __future__ import annotations

from harness.report.claims.evidence import Evidence, Finding, Question
from harness.report.labels import factor, percent, rtt, spell
from harness.report.published import PaperFigure

__all__ = ["against_streaming", "constant_energy", "constant_time", "not_longer", "slowdown"]

VARIES = 0.05
"""By how much EMLIO's epoch may vary with distance (section 5.1: "less than 5%"; section 2: "±5%")."""
FACTOR_TOLERANCE = 2.0
"""A factor reproduces the paper's within this: it depends on readers, step time and sample size."""
ORDER_TOLERANCE = 0.02
"""Epochs this close count as equally fast."""
FACTOR_WORDS = f"within a factor of {FACTOR_TOLERANCE:g} either way"


def constant_time(source: str, near_ms: float, far_ms: float) -> Question:
    """Ask whether the streaming loader's epoch takes as long far away as near."""

    def answer(evidence: Evidence) -> Finding:
        regimes = evidence.between(near_ms, far_ms)
        return _variation([evidence.time_s(evidence.results.streaming, regime) for regime in regimes])

    return Question(
        f"The streaming loader's epoch time varies by less than 5 % from {near_ms:g} to {rtt(far_ms)}.",
        "< 5 %",
        "(longest − shortest) / shortest of the regimes' medians",
        answer,
        source,
    )


def constant_energy(source: str, near_ms: float, far_ms: float) -> Question:
    """Ask whether the streaming loader's epoch takes as many joules far away as near."""

    def answer(evidence: Evidence) -> Finding:
        regimes = evidence.between(near_ms, far_ms)
        return _variation([evidence.joules(evidence.results.streaming, regime) for regime in regimes])

    return Question(
        f"The streaming loader's energy per epoch stays the same from {near_ms:g} to {rtt(far_ms)}.",
        "within 5 %",
        "(greatest − least) / least of the regimes' medians",
        answer,
        source,
    )


def slowdown(paper: PaperFigure, loader: str) -> Question:
    """Ask how many times as long a loader's epoch takes at 30 ms as at 0.1 ms."""
    near_ms, far_ms = 0.1, 30.0
    theirs = paper.epoch_s[loader][far_ms] / paper.epoch_s[loader][near_ms]

    def answer(evidence: Evidence) -> Finding:
        measured = evidence.time_s(loader, evidence.at(far_ms)) / evidence.time_s(loader, evidence.at(near_ms))
        why = evidence.per_sample(((near_ms, loader, loader), (far_ms, loader, loader)))
        return Finding(factor(measured), near_factor(measured, theirs), why)

    return Question(
        f"{spell(loader)}'s epoch takes {theirs:.0f} times as long at 30 ms as at 0.1 ms.",
        factor(theirs),
        FACTOR_WORDS,
        answer,
        f"EMLIO, {paper.name}",
    )


def against_streaming(paper: PaperFigure, loader: str, rtt_ms: float) -> Question:
    """Ask how many times as long as the streaming loader's a loader's epoch takes."""
    theirs = paper.epoch_s[loader][rtt_ms] / paper.epoch_s["streaming"][rtt_ms]

    def answer(evidence: Evidence) -> Finding:
        regime, streaming = evidence.at(rtt_ms), evidence.results.streaming or "streaming"
        measured = evidence.time_s(loader, regime) / evidence.time_s(streaming, regime)
        why = evidence.per_sample(((rtt_ms, loader, loader), (rtt_ms, "streaming", streaming)))
        return Finding(factor(measured), near_factor(measured, theirs), why)

    return Question(
        f"At {rtt(rtt_ms)} {spell(loader)}'s epoch takes {theirs:.2g} times as long as the streaming loader's.",
        factor(theirs),
        FACTOR_WORDS,
        answer,
        f"EMLIO, {paper.section}",
    )


def not_longer(paper: PaperFigure, loader: str, rtt_ms: float) -> Question:
    """Ask whether the streaming loader's epoch is no longer than a loader's."""
    theirs = 1 - paper.epoch_s["streaming"][rtt_ms] / paper.epoch_s[loader][rtt_ms]

    def answer(evidence: Evidence) -> Finding:
        regime = evidence.at(rtt_ms)
        shorter = 1 - evidence.time_s(evidence.results.streaming, regime) / evidence.time_s(loader, regime)
        return Finding(f"by {percent(shorter)}", shorter >= -ORDER_TOLERANCE)

    return Question(
        f"At {rtt(rtt_ms)} the streaming loader's epoch is shorter than {spell(loader)}'s.",
        f"by {percent(theirs)}",
        f"no longer; epochs within {100 * ORDER_TOLERANCE:g} % count as equal",
        answer,
        f"EMLIO, {paper.section}",
    )


def near_factor(measured: float, paper: float) -> bool:
    """Return whether a factor reproduces the paper's."""
    return paper / FACTOR_TOLERANCE <= measured <= paper * FACTOR_TOLERANCE


def _variation(values: list[float]) -> Finding:
    varies = (max(values) - min(values)) / min(values)
    return Finding(percent(varies), varies < VARIES)
