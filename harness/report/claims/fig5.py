"""Figure 5: PyTorch, DALI and EMLIO on ImageNet, from local files to 30 ms (section 5.1)."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from harness.report.claims.evidence import Evidence, Finding, Question
from harness.report.claims.questions import against_streaming, constant_energy, constant_time, slowdown
from harness.report.labels import factor, spell
from harness.report.published import FIG5

__all__ = ["questions"]

ENERGY_FACTOR = 4.0
"""The least factor of energy that the paper names for higher latency (section 5.1: "4×–60×")."""
ORDER_TOLERANCE = 0.02
"""Epochs this close count as equally fast."""
_SOURCE = "EMLIO, section 5.1"


def questions() -> Iterable[Question]:
    """Yield the claims."""
    yield constant_time(_SOURCE, 0.1, 30.0)
    yield Question(
        "On local files DALI is fastest, streaming close behind, PyTorch last.",
        " / ".join(f"{FIG5.epoch_s[loader][0.0]:.0f}" for loader in ("dali", "streaming", "pytorch")) + " s",
        "in this order; epochs within 2 % count as equal",
        _local_order,
        _SOURCE,
    )
    for loader in ("pytorch", "dali"):
        yield slowdown(FIG5, loader)
    for loader in ("pytorch", "dali"):
        yield against_streaming(FIG5, loader, 30.0)
    yield constant_energy("EMLIO, sections 2 and 5.1", 0.1, 30.0)
    for loader in ("pytorch", "dali"):
        yield _energy(loader)


def _local_order(evidence: Evidence) -> Finding:
    local = evidence.regime(0.0, 0.0)
    order = ("dali", evidence.results.streaming, "pytorch")
    times = [evidence.time_s(loader, local) for loader in order]
    holds = all(first <= second * (1 + ORDER_TOLERANCE) for first, second in pairwise(times))
    return Finding(" / ".join(f"{time:.3g}" for time in times) + " s", holds)


def _energy(loader: str) -> Question:
    def answer(evidence: Evidence) -> Finding:
        far = evidence.at(30.0)
        measured = evidence.joules(loader, far) / evidence.joules(evidence.results.streaming, far)
        return Finding(factor(measured), measured >= ENERGY_FACTOR)

    return Question(
        f"At 30 ms {spell(loader)} uses at least 4 times the streaming loader's energy per epoch.",
        "≥ 4×",
        "the lower end of the paper's range, 4 to 60 times",
        answer,
        _SOURCE,
    )
