"""Sentences of papers as predicates over epoch rows, each with a tolerance, read from conf/claims and judged.

A claim is judged on valid rows alone; what rests on an estimate or an emulated accelerator is not judged as if it were
measured. docs/claims.md describes how a claim is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.errors import ResultsError
from harness.report.claims.bound import FAIL, INCONCLUSIVE, NOT_CHECKED, PASS
from harness.report.claims.definition import Definition
from harness.report.claims.metrics import BATCH_METRICS
from harness.report.claims.reader import make_definitions, read_claims
from harness.report.claims.rows import make_claim_rows
from harness.report.claims.verdict import Claim, evaluate, refuse
from harness.results.reader import Results

__all__ = ["FAIL", "INCONCLUSIVE", "NOT_CHECKED", "PASS", "Claim", "group_unchecked", "judge", "read_claims"]


def judge(results: Results, figures: Sequence[str], files: Sequence[Path] = ()) -> tuple[Claim, ...]:
    """Judge the claims of figures, in the order of these and of the YAML files, and those of the user's own `files`.

    An experiment with `judged: false` has none. Raises ResultsError where a YAML is wrong.
    """
    if not results.experiment.judged:
        return ()
    known = make_definitions()
    asked = [one for name in figures for one in known if one.figure == name]
    asked += [one for path in files for one in read_claims(path)]
    metrics = {one.metric for one in asked} | {"reordered_share" for one in asked if one.needs.reordered}
    broken = ""
    try:
        rows = make_claim_rows(results, metrics)
    except ResultsError as error:  # a damaged file of batches; other claims need none
        rows, broken = make_claim_rows(results), str(error)
    return tuple(refuse(one, broken) if broken and _needs_batches(one) else evaluate(one, rows) for one in asked)


def group_unchecked(claims: Sequence[Claim]) -> Mapping[str, Sequence[Claim]]:
    """Return the claims that are not checked by their reason, the commonest reason first."""
    found: dict[str, list[Claim]] = {}
    for claim in claims:
        if claim.verdict == NOT_CHECKED:
            found.setdefault(claim.reason, []).append(claim)
    return dict(sorted(found.items(), key=lambda one: -len(one[1])))


def _needs_batches(definition: Definition) -> bool:
    return definition.metric in BATCH_METRICS or bool(definition.needs.reordered)
