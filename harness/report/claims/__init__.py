"""Sentences of papers as predicates over epoch rows, each with a tolerance, read from conf/claims and judged.

A claim is judged on valid rows alone; what rests on an estimate or an emulated accelerator is not judged as if it were
measured. docs/claims.md describes how a claim is written.
"""

from __future__ import annotations

from harness.report.claims.definition import Definition, make_definitions, read_claims
from harness.report.claims.rows import make_claim_rows
from harness.report.claims.verdict import FAIL, NOT_CHECKED, PASS, Claim, evaluate
from harness.report.distance import choose_figure
from harness.results.reader import Results

__all__ = ["FAIL", "NOT_CHECKED", "PASS", "Claim", "judge", "read_claims"]


def judge(results: Results) -> tuple[Claim, ...]:
    """Judge the claims of the figures that the run's config names, in the order of these and of the YAML files.

    In place of a figure by distance, the paper's figure that asks what the run asks is taken. A figure module of the
    user's own brings its claims by `CLAIMS`, the path of such a file.
    """
    asked = _asked(results)
    rows = make_claim_rows(results, composed=any(one.metric.startswith("slow_") for one in asked))
    return tuple(evaluate(one, rows) for one in asked)


def _asked(results: Results) -> tuple[Definition, ...]:
    from harness.report.figures import read_figure_claims
    from harness.report.figures.definition import BY_DISTANCE, list_packaged, read_figure

    names = list(results.experiment.figures)
    by_distance = [
        name for name in names if name in list_packaged() and read_figure(list_packaged()[name]).family == BY_DISTANCE
    ]
    names = [name for name in names if name not in by_distance]
    names += [choose_figure(results).id] if by_distance else []
    known = make_definitions()
    return (*(one for name in names for one in known if one.figure == name), *read_figure_claims(results))
