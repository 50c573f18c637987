"""The YAML of claims: what is wrong in one is said, and the papers' own are whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.config import list_packaged
from harness.errors import ResultsError
from harness.report.claims.definition import make_definitions, read_claims
from harness.report.distance import read_paper_figure, sum_kj
from harness.report.figures import check_figures

CLAIM = {
    "id": "one",
    "figure": "emlio_fig5",
    "text": "It is so.",
    "section": "section 1",
    "metric": "duration_s",
    "of": {"loader": "dali"},
    "over": {"loader": "pytorch"},
    "is": "within",
    "paper": 2.0,
}


def written(tmp_path: Path, *claims: Any, **whole: Any) -> Path:
    path = tmp_path / "paper.yaml"
    path.write_text(yaml.safe_dump({"paper": "A paper", "claims": list(claims), **whole}))
    return path


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"tolerence": {"relative": 0.1}},
            r"claim one: tolerence: .*tolerance\?",
        ),
        ({"metric": "seconds"}, "claim one: metric='seconds': .*duration_s, "),
        ({"of": {"loaders": "dali"}}, "claim one: of=.*loader, .*'loaders'"),
        ({"of": {"host.name": "a"}}, "'host.name'"),
        ({"is": "about"}, "claim one: is='about': .*at_least, at_most, within"),
        ({"paper": "2"}, "claim one: paper='2'"),
        ({"paper": True}, "claim one: paper=True"),
        ({"paper": {"ratio": [1]}}, r"ratio.*\[1\]"),
        ({"tolerance": {"percent": 5}}, "tolerance.percent: .*absolute, factor, relative"),
        ({"tolerance": {"factor": 0.5}}, "tolerance.factor=0.5"),
        ({"tolerance": {"factor": 2, "relative": 1}}, "tolerance: .*relative, absolute, factor"),
        ({"needs": {"gpus": 4}}, "needs.gpus: .*accelerator, devices"),
        ({"needs": {"accelerator": "fake"}}, "needs.accelerator='fake': .*real, emulated, any"),
        ({"each": {"rtt_ms": "all"}}, "combine"),
        ({"each": {"rtt_ms": 3}, "combine": "least"}, "each=.*rtt_ms"),
        ({"combine": "least"}, "combine.*each"),
        ({"settled": "yes"}, "settled='yes'"),
        ({"as": "furlongs"}, "as='furlongs': .*factor, less"),
        ({"of": ["dali"]}, r"of=\['dali'\]"),
    ],
)
def test_what_is_wrong_in_a_claim_is_named(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ResultsError, match=message) as caught:
        read_claims(written(tmp_path, {**CLAIM, **changed}))
    assert str(tmp_path / "paper.yaml") in str(caught.value)


def test_what_is_wrong_in_a_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match="author"):
        read_claims(written(tmp_path, author="me"))
    with pytest.raises(ResultsError, match="id one "):
        read_claims(written(tmp_path, CLAIM, CLAIM))
    (tmp_path / "torn.yaml").write_text("paper: [")
    with pytest.raises(ResultsError, match=r"torn.yaml"):
        read_claims(tmp_path / "torn.yaml")


def test_every_claim_of_the_papers_has_an_id_of_its_own_and_a_sentence() -> None:
    found = make_definitions()
    assert len({one.id for one in found}) == len(found)
    assert set(list_packaged("claims")) == {"emlio", "minato", "spdl", "textbook"}
    for one in found:
        assert one.claim.endswith(".") and one.id.startswith(one.figure), one.id
        assert one.bound.holds(one.bound.paper), one.id


def test_every_figure_of_which_claims_are_made_is_there() -> None:
    figures = {one.figure for one in make_definitions()}
    drawn = set(list_packaged("experiment"))
    check_figures(figures & drawn)
    assert {f"minato_fig{name}" for name in ("1b", "3", "7", "8", "9", "10", "11", "12")} <= figures


def test_the_ratios_are_those_of_the_published_seconds_and_joules() -> None:
    by_id = {one.id: one.bound.paper for one in make_definitions()}
    for name in ("emlio_fig5", "emlio_fig9", "emlio_fig10"):
        figure = read_paper_figure(name.replace("_", "/"))
        dali, streaming = figure.epoch_s["dali"], figure.epoch_s["streaming"]
        assert by_id[f"{name}_dali_slows"] == pytest.approx(dali[30.0] / dali[0.1])
        behind = by_id.get(f"{name}_dali_behind_30ms") or by_id[f"{name}_dali_behind"]
        assert behind == pytest.approx(dali[30.0] / streaming[30.0])
    kilojoules = read_paper_figure("emlio/fig10").energy_kj
    saving = sum_kj(kilojoules["streaming"][30.0])[0] / sum_kj(kilojoules["dali"][30.0])[0]
    assert by_id["emlio_fig10_saving"] == pytest.approx(saving)
