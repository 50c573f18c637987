"""Sentences of a paper as predicates over epoch rows, each with a tolerance.

A claim is judged on valid rows alone; an energy claim is not judged where a joule behind it is an estimate
or the accelerator is emulated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from harness.report.folder import Results
from harness.report.labels import factor, percent, rtt, spell
from harness.report.published import EPOCH_S, SAMPLES, WORKLOAD
from harness.report.summary import Group, find, summarise

__all__ = ["HOLDS", "NOT_HELD", "NOT_JUDGED", "Claim", "judge"]

HOLDS = "holds"
NOT_HELD = "does not hold"
NOT_JUDGED = "not judged"

VARIES = 0.05
"""By how much EMLIO's epoch may vary from 0.1 to 30 ms (section 5.1: "less than 5%")."""
FACTOR_TOLERANCE = 2.0
"""A slowdown reproduces the paper's within this factor: it depends on readers, step time and sample size."""
ENERGY_FACTOR = 4.0
"""The least factor of energy that the paper names for higher latency (section 5.1: "4×–60×")."""
ORDER_TOLERANCE = 0.02
"""Epochs this close count as equally fast."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim and its verdict, as claims.json holds it."""

    claim: str
    source: str
    expected: str
    actual: str
    verdict: str
    reason: str
    """Why it was not judged, or what the tolerance is and what makes the difference."""


class _CannotJudge(Exception):
    """What a claim needs is not in the folder; the message says what."""


@dataclass(frozen=True, slots=True)
class _Evidence:
    """The groups of the claimed workload, looked up by loader and RTT."""

    results: Results
    groups: tuple[Group, ...]

    def regime(self, low_ms: float, high_ms: float) -> str:
        """Return the farthest regime with an RTT within the bounds; 0 to 0 is local."""
        local = high_ms == 0
        found = [
            key
            for key in self.results.regimes
            if self.results.is_local(key) == local and low_ms <= self.results.rtt_ms(key) <= high_ms
        ]
        if not found:
            raise _CannotJudge("no local regime" if local else f"no regime of {rtt((low_ms + high_ms) / 2)}")
        return found[-1]

    def far(self) -> str:
        """Return the regime of 30 ms."""
        return self.regime(28.5, 31.5)

    def near(self) -> str:
        """Return the regime of 0.1 ms."""
        return self.regime(0.05, 0.15)

    def group(self, loader: str | None, regime: str) -> Group:
        """Return a group that holds valid rows."""
        if loader is None:
            raise _CannotJudge("no streaming loader")
        group = find(self.groups, WORKLOAD, regime, loader)
        if group is None or not group.trusted:
            raise _CannotJudge(f"no valid row of {spell(loader)} in regime {regime}")
        return group

    def time_s(self, loader: str | None, regime: str) -> float:
        """Return the median epoch time in s of valid rows."""
        stat = self.group(loader, regime).time_s
        if stat is None:
            raise _CannotJudge(f"no epoch time of {loader} in regime {regime}")
        return stat.median

    def joules(self, loader: str | None, regime: str) -> float:
        """Return the median joules per epoch of valid rows, measured ones only."""
        group = self.group(loader, regime)
        if self.results.emulated:
            raise _CannotJudge("the accelerator is emulated")
        if group.estimated:
            raise _CannotJudge(f"the joules of {'/'.join(sorted(group.estimated))} are an estimate")
        if group.total_j is None or not {"cpu", "gpu"} <= group.domain_j.keys():
            raise _CannotJudge(f"no joules of CPU and GPU for {spell(group.loader)} in regime {regime}")
        return group.total_j.median


@dataclass(frozen=True, slots=True)
class _Finding:
    actual: str
    holds: bool
    why: str = ""
    """What, in the figures themselves, makes the difference to the paper."""


@dataclass(frozen=True, slots=True)
class _Question:
    claim: str
    expected: str
    tolerance: str
    answer: Callable[[_Evidence], _Finding]
    source: str = "EMLIO, section 5.1"


def judge(results: Results) -> tuple[Claim, ...]:
    """Judge every claim of EMLIO's section 5.1 on a results folder."""
    evidence = _Evidence(results, summarise(results))
    return tuple(_judged(question, evidence) for question in _questions())


def _judged(question: _Question, evidence: _Evidence) -> Claim:
    try:
        if WORKLOAD not in evidence.results.workloads:
            raise _CannotJudge("no ResNet-50 row")
        finding = question.answer(evidence)
    except _CannotJudge as missing:
        return Claim(question.claim, question.source, question.expected, "", NOT_JUDGED, str(missing))
    verdict = HOLDS if finding.holds else NOT_HELD
    reason = question.tolerance
    if not finding.holds and finding.why:
        reason += f"; {finding.why}"
    return Claim(question.claim, question.source, question.expected, finding.actual, verdict, reason)


def _questions() -> Iterable[_Question]:
    yield _Question(
        "The streaming loader's epoch time varies by less than 5 % from 0.1 to 30 ms.",
        "< 5 %",
        "(longest − shortest) / shortest of the regimes' medians",
        _streaming_is_constant,
    )
    yield _Question(
        "On local files DALI is fastest, streaming close behind, PyTorch last.",
        " / ".join(f"{EPOCH_S[loader][0.0]:.0f}" for loader in ("dali", "streaming", "pytorch")) + " s",
        "in this order; epochs within 2 % count as equal",
        _local_order,
    )
    for loader in ("pytorch", "dali"):
        yield _slowdown_question(loader)
    for loader in ("pytorch", "dali"):
        yield _against_streaming_question(loader)
    yield _Question(
        "The streaming loader's energy per epoch stays the same from 0.1 to 30 ms.",
        "within 5 %",
        "(greatest − least) / least of the regimes' medians",
        _streaming_energy_is_constant,
        "EMLIO, sections 2 and 5.1",
    )
    for loader in ("pytorch", "dali"):
        yield _energy_question(loader)


def _remote_regimes(evidence: _Evidence) -> list[str]:
    near, far = evidence.near(), evidence.far()
    low, high = (evidence.results.rtt_ms(key) for key in (near, far))
    return [
        key
        for key in evidence.results.regimes
        if not evidence.results.is_local(key) and low <= evidence.results.rtt_ms(key) <= high
    ]


def _variation(values: list[float]) -> _Finding:
    varies = (max(values) - min(values)) / min(values)
    return _Finding(percent(varies), varies < VARIES)


def _streaming_is_constant(evidence: _Evidence) -> _Finding:
    regimes = _remote_regimes(evidence)
    return _variation([evidence.time_s(evidence.results.streaming, regime) for regime in regimes])


def _streaming_energy_is_constant(evidence: _Evidence) -> _Finding:
    regimes = _remote_regimes(evidence)
    return _variation([evidence.joules(evidence.results.streaming, regime) for regime in regimes])


def _local_order(evidence: _Evidence) -> _Finding:
    local = evidence.regime(0.0, 0.0)
    order = ("dali", evidence.results.streaming, "pytorch")
    times = [evidence.time_s(loader, local) for loader in order]
    holds = all(first <= second * (1 + ORDER_TOLERANCE) for first, second in pairwise(times))
    return _Finding(" / ".join(f"{time:.3g}" for time in times) + " s", holds)


def _near_factor(measured: float, paper: float) -> bool:
    return paper / FACTOR_TOLERANCE <= measured <= paper * FACTOR_TOLERANCE


def _per_sample(evidence: _Evidence, points: Iterable[tuple[float, float, str, str]]) -> str:
    """Tell the time per sample behind a factor, here and in the paper, by (RTT, paper's epoch, loader, regime)."""
    here, paper = [], []
    for rtt_ms, epoch_s, loader, regime in points:
        samples = [row.samples for row in evidence.group(loader, regime).rows if row.samples]
        if not samples:
            return ""
        label = f"{spell(loader)} at {rtt(rtt_ms)}"
        here.append(f"{label} {1e3 * evidence.time_s(loader, regime) / median(samples):.2g} ms")
        paper.append(f"{1e3 * epoch_s / SAMPLES:.2g} ms")
    return f"per sample, {', '.join(here)}; the paper's epochs come to {' and '.join(paper)}"


def _slowdown_question(loader: str) -> _Question:
    paper = EPOCH_S[loader][30.0] / EPOCH_S[loader][0.1]

    def answer(evidence: _Evidence) -> _Finding:
        far, near = evidence.far(), evidence.near()
        measured = evidence.time_s(loader, far) / evidence.time_s(loader, near)
        at = (0.1, EPOCH_S[loader][0.1], loader, near), (30.0, EPOCH_S[loader][30.0], loader, far)
        return _Finding(factor(measured), _near_factor(measured, paper), _per_sample(evidence, at))

    return _Question(
        f"{spell(loader)}'s epoch takes {paper:.0f} times as long at 30 ms as at 0.1 ms.",
        factor(paper),
        f"within a factor of {FACTOR_TOLERANCE:g} either way",
        answer,
        "EMLIO, figure 5",
    )


def _against_streaming_question(loader: str) -> _Question:
    paper = EPOCH_S[loader][30.0] / EPOCH_S["streaming"][30.0]

    def answer(evidence: _Evidence) -> _Finding:
        far = evidence.far()
        streaming = evidence.results.streaming or "streaming"
        measured = evidence.time_s(loader, far) / evidence.time_s(streaming, far)
        at = (30.0, EPOCH_S[loader][30.0], loader, far), (30.0, EPOCH_S["streaming"][30.0], streaming, far)
        return _Finding(factor(measured), _near_factor(measured, paper), _per_sample(evidence, at))

    return _Question(
        f"At 30 ms {spell(loader)}'s epoch takes {paper:.0f} times as long as the streaming loader's.",
        factor(paper),
        f"within a factor of {FACTOR_TOLERANCE:g} either way",
        answer,
    )


def _energy_question(loader: str) -> _Question:
    def answer(evidence: _Evidence) -> _Finding:
        far = evidence.far()
        measured = evidence.joules(loader, far) / evidence.joules(evidence.results.streaming, far)
        return _Finding(factor(measured), measured >= ENERGY_FACTOR)

    return _Question(
        f"At 30 ms {spell(loader)} uses at least 4 times the streaming loader's energy per epoch.",
        "≥ 4×",
        "the lower end of the paper's range, 4 to 60 times",
        answer,
    )
