"""Sentences of papers as predicates over epoch rows, each with a tolerance, read from conf/claims and judged.

A claim is judged on valid rows alone; what rests on an estimate or an emulated accelerator is not judged as if it were
measured. docs/claims.md tells how a claim is written.
"""

from __future__ import annotations

from pathlib import Path

from harness.report.claims.definition import Definition, definitions, read_claims
from harness.report.claims.rows import claim_rows
from harness.report.claims.verdict import FAIL, NOT_CHECKED, PASS, Claim, evaluate
from harness.report.folder import Results
from harness.report.published import FIG5, FIG7, FIG8, FIG9, FIG10, figure_of

__all__ = ["FAIL", "NOT_CHECKED", "PASS", "Claim", "judge", "read_claims"]

_EMLIO = {FIG5.name: "emlio_fig5", FIG7.name: "emlio_fig7", FIG8.name: "emlio_fig8", FIG9.name: "emlio_fig9"}
_EMLIO |= {FIG10.name: "emlio_fig10"}


def judge(results: Results) -> tuple[Claim, ...]:
    """Judge the claims of the figures that the run's config names, in the order of these and of the YAML files.

    For a figure of EMLIO's that of the paper is taken which asks what the run asks. A figure module of the user's own
    brings its claims by `CLAIMS`, the path of such a file.
    """
    asked = _asked(results)
    rows = claim_rows(results, composed=any(one.metric.startswith("slow_") for one in asked))
    return tuple(evaluate(one, rows) for one in asked)


def _asked(results: Results) -> tuple[Definition, ...]:
    from harness.report.figures import figure_modules

    names = [str(name) for name in results.config.get("figures") or ()]
    if any(name in _EMLIO.values() for name in names):
        names = [name for name in names if name not in _EMLIO.values()] + [_EMLIO[figure_of(results).name]]
    known = definitions()
    modules = figure_modules(results)
    own = [one for module in modules if hasattr(module, "CLAIMS") for one in read_claims(Path(module.CLAIMS))]
    return (*(one for name in names for one in known if one.figure == name), *own)
