"""Sentences of papers as predicates over epoch rows, each with a tolerance, read from conf/claims and judged.

A claim is judged on valid rows alone; what rests on an estimate or an emulated accelerator is not judged as if it were
measured. docs/claims.md describes how a claim is written.
"""

from __future__ import annotations

from harness.report.claims.definition import Definition, definitions, read_claims
from harness.report.claims.rows import claim_rows
from harness.report.claims.verdict import FAIL, NOT_CHECKED, PASS, Claim, evaluate
from harness.report.distance import figure_of
from harness.results.reader import Results

__all__ = ["FAIL", "NOT_CHECKED", "PASS", "Claim", "judge", "read_claims"]


def judge(results: Results) -> tuple[Claim, ...]:
    """Judge the claims of the figures that the run's config names, in the order of these and of the YAML files.

    In place of a figure by distance, the paper's figure that asks what the run asks is taken. A figure module of the
    user's own brings its claims by `CLAIMS`, the path of such a file.
    """
    asked = _asked(results)
    rows = claim_rows(results, composed=any(one.metric.startswith("slow_") for one in asked))
    return tuple(evaluate(one, rows) for one in asked)


def _asked(results: Results) -> tuple[Definition, ...]:
    from harness.report.figures import figure_claims
    from harness.report.figures.definition import BY_DISTANCE, packaged, read_figure

    names = list(results.experiment.figures)
    by_distance = [name for name in names if name in packaged() and read_figure(packaged()[name]).family == BY_DISTANCE]
    names = [name for name in names if name not in by_distance]
    names += [figure_of(results).id] if by_distance else []
    known = definitions()
    return (*(one for name in names for one in known if one.figure == name), *figure_claims(results))
