"""Sentences of a paper as predicates over epoch rows, each with a tolerance.

A claim is judged on valid rows alone; an energy claim is not judged where a joule behind it is an estimate
or the accelerator is emulated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from harness.report.claims import fig5, sharded, synthetic, vgg19
from harness.report.claims.evidence import CannotJudge, Evidence, Question
from harness.report.folder import Results
from harness.report.labels import spell
from harness.report.published import FIG5, FIG7, FIG8, FIG9, FIG10, figure_of
from harness.report.summary import summarise

__all__ = ["HOLDS", "NOT_HELD", "NOT_JUDGED", "Claim", "judge"]

HOLDS = "holds"
NOT_HELD = "does not hold"
NOT_JUDGED = "not judged"

_QUESTIONS: dict[str, Callable[[], Iterable[Question]]] = {
    FIG5.name: fig5.questions,
    FIG7.name: synthetic.one_stream,
    FIG8.name: synthetic.two_streams,
    FIG9.name: vgg19.questions,
    FIG10.name: sharded.questions,
}


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


def judge(results: Results) -> tuple[Claim, ...]:
    """Judge the claims that the run's figures bring, or those of the EMLIO figure that asks what this run asks.

    A figure module brings claims by `questions(results)`; a run whose figures are of another paper has none of EMLIO's.
    """
    from harness.report.figures import figure_modules

    paper = figure_of(results)
    evidence = Evidence(results, summarise(results), paper)
    figures = figure_modules(results)
    brought = [question for module in figures if hasattr(module, "questions") for question in module.questions(results)]
    if brought:
        return tuple(_judged(question, evidence) for question in brought)
    if figures and not any(module.__name__.rpartition(".")[2].startswith("emlio") for module in figures):
        return ()
    if paper.workload not in results.workloads:
        missing = f"no {spell(paper.workload)} row"
        return tuple(_unjudged(question, missing) for question in _QUESTIONS[paper.name]())
    return tuple(_judged(question, evidence) for question in _QUESTIONS[paper.name]())


def _judged(question: Question, evidence: Evidence) -> Claim:
    try:
        finding = question.answer(evidence)
    except CannotJudge as missing:
        return _unjudged(question, str(missing))
    verdict = HOLDS if finding.holds else NOT_HELD
    reason = question.tolerance
    if not finding.holds and finding.why:
        reason += f"; {finding.why}"
    return Claim(question.claim, question.source, question.expected, finding.actual, verdict, reason)


def _unjudged(question: Question, why: str) -> Claim:
    return Claim(question.claim, question.source, question.expected, "", NOT_JUDGED, why)
