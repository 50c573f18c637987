"""Figure 10: DALI and EMLIO on a dataset of which half lies on the compute node (section 5.2)."""

from __future__ import annotations

from collections.abc import Iterable

from harness.report.claims.evidence import Evidence, Finding, Question
from harness.report.claims.questions import against_streaming, constant_time, not_longer, slowdown
from harness.report.labels import percent
from harness.report.published import FIG10

__all__ = ["questions"]

SAVING_TOLERANCE = 0.05
_SOURCE = "EMLIO, section 5.2"


def questions() -> Iterable[Question]:
    """Yield the claims."""
    yield constant_time(_SOURCE, 0.1, 30.0)
    yield slowdown(FIG10, "dali")
    yield not_longer(FIG10, "dali", 0.1)
    for rtt_ms in (10.0, 30.0):
        yield against_streaming(FIG10, "dali", rtt_ms)
    saving = 1 - FIG10.energy_kj["streaming"][30.0].low / FIG10.energy_kj["dali"][30.0].low
    yield Question(
        f"At 30 ms the streaming loader uses {percent(saving)} less energy per epoch than DALI.",
        percent(saving),
        "no less than 5 points below; CPU, DRAM and GPU together",
        lambda evidence: _saves(evidence, saving),
        _SOURCE,
    )


def _saves(evidence: Evidence, paper: float) -> Finding:
    far = evidence.at(30.0)
    saving = 1 - evidence.joules(evidence.results.streaming, far) / evidence.joules("dali", far)
    return Finding(percent(saving), saving >= paper - SAVING_TOLERANCE)
