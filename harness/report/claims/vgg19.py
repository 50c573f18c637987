"""Figure 9: DALI and EMLIO feeding VGG-19, from 0.1 to 30 ms (section 5.1)."""

from __future__ import annotations

from collections.abc import Iterable

from harness.report.claims.evidence import Question
from harness.report.claims.questions import against_streaming, constant_energy, constant_time, not_longer, slowdown
from harness.report.published import FIG9

__all__ = ["questions"]

_SOURCE = "EMLIO, section 5.1"


def questions() -> Iterable[Question]:
    """Yield the claims."""
    yield constant_time(_SOURCE, 0.1, 30.0)
    yield slowdown(FIG9, "dali")
    yield not_longer(FIG9, "dali", 0.1)
    for rtt_ms in (10.0, 30.0):
        yield against_streaming(FIG9, "dali", rtt_ms)
    yield constant_energy(_SOURCE, 0.1, 30.0)
