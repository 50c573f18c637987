"""Every claim of the papers can be met and can be failed, and a claim that cannot is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.errors import ConfigError
from harness.report.claims import FAIL, PASS
from harness.report.claims.definition import Definition
from harness.report.claims.reader import make_definitions, read_claims
from harness.report.claims.verdict import evaluate
from tests.report.witness import make_witness


def is_decidable(definition: Definition) -> bool:
    """Whether some run meets the claim and another one fails it."""
    try:
        made = [(verdict, evaluate(definition, make_witness(definition, verdict))) for verdict in (PASS, FAIL)]
    except ConfigError:
        return False
    return all(claim.verdict == verdict for verdict, claim in made)


def test_every_claim_passes_on_one_run_and_fails_on_another() -> None:
    definitions = make_definitions()
    assert len(definitions) > 100
    assert [definition.id for definition in definitions if not is_decidable(definition)] == []


@pytest.mark.parametrize(
    "claim",
    [
        {"metric": "gpu_util", "is": "at_most", "paper": 1},
        {"metric": "busy_share", "is": "at_least", "paper": 0.9, "tolerance": {"absolute": 0.9}},
        {"metric": "gpu_util", "is": "above", "paper": 1},
        {"is": "at_least", "paper": 0},
        {"is": "within", "paper": 5, "each": {"loader.num_workers": [1, 2]}, "combine": "knee"},
        {"is": "within", "paper": 2, "over": {"loader": "dali"}},
        {"is": "below", "paper": 1, "over": {"loader": ["dali", "pytorch"]}},
        {"is": "at_most", "paper": 1, "needs": {"sample_kb": [140, 90]}},
    ],
)
def test_a_claim_that_no_run_can_meet_or_none_can_fail_is_found(tmp_path: Path, claim: dict[str, Any]) -> None:
    whole = {"id": "one", "figure": "f", "text": "It is so.", "section": "s", "metric": "duration_s"}
    path = tmp_path / "paper.yaml"
    path.write_text(yaml.safe_dump({"paper": "P", "claims": [{**whole, "of": {"loader": "dali"}, **claim}]}))
    (definition,) = read_claims(path)
    assert not is_decidable(definition)
