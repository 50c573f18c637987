"""Figures 7 and 8: DALI and EMLIO on samples of 2 MB, over one stream and over two (section 5.1)."""

from __future__ import annotations

from collections.abc import Iterable

from harness.report.claims.evidence import Evidence, Finding, Question
from harness.report.claims.questions import constant_energy, constant_time
from harness.report.labels import factor

__all__ = ["one_stream", "two_streams"]

_SOURCE = "EMLIO, section 5.1, synthetic 2 MB records"
_NEAR_MS = (0.1, 1.0)


def one_stream() -> Iterable[Question]:
    """Yield the claims of figure 7."""
    yield Question(
        "Over one stream, 2 MB samples take the streaming loader longer than DALI at 0.1 and 1 ms.",
        "> 1× at both",
        "ratio of the epochs, streaming to DALI",
        _slower_when_near,
        _SOURCE,
    )
    yield constant_time(_SOURCE, 1.0, 30.0)
    yield constant_energy(_SOURCE, 1.0, 30.0)


def two_streams() -> Iterable[Question]:
    """Yield the claims of figure 8, which are made of 0.1 and 1 ms alone."""
    yield Question(
        "Over two streams the streaming loader's throughput is 2 to 3 times DALI's.",
        "≥ 2× at 0.1 and 1 ms",
        "the lower end of the paper's range; ratio of the epochs, DALI to streaming",
        _lead_in_time,
        _SOURCE,
    )
    yield Question(
        "Over two streams the streaming loader uses 3 to 5 times less energy than DALI.",
        "≥ 3× at 0.1 and 1 ms",
        "the lower end of the paper's range; ratio of the joules, DALI to streaming",
        _lead_in_energy,
        _SOURCE,
    )


def _slower_when_near(evidence: Evidence) -> Finding:
    streaming = evidence.results.streaming
    ratios = [evidence.time_s(streaming, at) / evidence.time_s("dali", at) for at in map(evidence.at, _NEAR_MS)]
    why = "the paper's daemon serialises every batch on its one thread, this one sends slices of the mapped file"
    return Finding(_both(ratios), min(ratios) > 1.0, why)


def _lead_in_time(evidence: Evidence) -> Finding:
    streaming = evidence.results.streaming
    ratios = [evidence.time_s("dali", at) / evidence.time_s(streaming, at) for at in map(evidence.at, _NEAR_MS)]
    return Finding(_both(ratios), min(ratios) >= 2.0)


def _lead_in_energy(evidence: Evidence) -> Finding:
    streaming = evidence.results.streaming
    ratios = [evidence.joules("dali", at) / evidence.joules(streaming, at) for at in map(evidence.at, _NEAR_MS)]
    return Finding(_both(ratios), min(ratios) >= 3.0)


def _both(ratios: list[float]) -> str:
    return ", ".join(factor(ratio) for ratio in ratios)
