"""Sentences of papers as predicates over epoch rows, each with a tolerance, read from conf/claims and judged.

A claim is judged on valid rows alone; what rests on an estimate or an emulated accelerator is not judged as if it were
measured. docs/claims.md describes how a claim is written.
"""

from __future__ import annotations

from harness.errors import ResultsError
from harness.report.claims.definition import Definition
from harness.report.claims.metrics import BATCH_METRICS
from harness.report.claims.reader import make_definitions, read_claims
from harness.report.claims.rows import make_claim_rows
from harness.report.claims.verdict import Claim, evaluate, refuse
from harness.report.claims.words import FAIL, INCONCLUSIVE, NOT_CHECKED, PASS
from harness.report.distance import choose_figure
from harness.results.reader import Results

__all__ = ["FAIL", "INCONCLUSIVE", "NOT_CHECKED", "PASS", "Claim", "judge", "read_claims"]


def judge(results: Results) -> tuple[Claim, ...]:
    """Judge the claims of the figures that the run's config names, in the order of these and of the YAML files.

    In place of a figure by distance, the paper's figure that asks what the run asks is taken. A figure module of the
    user's own brings its claims by `CLAIMS`, the path of such a file. An experiment with `judged: false` has none.
    """
    if not results.experiment.judged:
        return ()
    asked = _asked(results)
    metrics = {one.metric for one in asked} | {"reordered_share" for one in asked if one.needs.reordered}
    broken = ""
    try:
        rows = make_claim_rows(results, metrics)
    except ResultsError as error:  # a damaged file of batches; other claims need none
        rows, broken = make_claim_rows(results), str(error)
    return tuple(refuse(one, broken) if broken and _needs_batches(one) else evaluate(one, rows) for one in asked)


def _needs_batches(definition: Definition) -> bool:
    return definition.metric in BATCH_METRICS or bool(definition.needs.reordered)


def _asked(results: Results) -> tuple[Definition, ...]:
    from harness.report.figures import read_figure_claims
    from harness.report.figures.definition import Bars, list_packaged, read_figure

    drawn = list_packaged()
    names = list(results.experiment.figures)
    figures = {name: read_figure(drawn[name]) for name in names if name in drawn}
    by_distance = [name for name, one in figures.items() if isinstance(one, Bars) and one.below]
    names = [name for name in names if name not in by_distance]
    names += [choose_figure(results).id] if by_distance else []
    # An experiment without a figure of its name may have claims.
    names += [results.name] if results.name not in drawn else []
    known = make_definitions()
    return (*(one for name in names for one in known if one.figure == name), *read_figure_claims(results))
