"""The YAML of claims: what is wrong in one is said, and the papers' own are whole."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.config import list_packaged
from harness.errors import ResultsError
from harness.report.claims.reader import make_definitions, read_claims
from harness.report.distance import read_paper_figure, sum_kj
from harness.report.figures import check_figures
from harness.report.papers import find_values, low

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
        ({"tolerence": {"relative": 0.1}}, r"claim one: tolerence: .*tolerance\?"),
        ({"metric": "seconds"}, "claim one: metric='seconds': .*duration_s, "),
        ({"of": {"loaders": "dali"}}, "claim one: of=.*loader, .*'loaders'"),
        ({"of": {"host.name": "a"}}, "'host.name'"),
        ({"is": "about"}, "claim one: is='about': .*above, below, at_least, at_most, within"),
        ({"paper": "2"}, "claim one: paper='2'"),
        ({"paper": True}, "claim one: paper=True"),
        ({"paper": {"ratio": [1]}}, r"ratio.*\[1\]"),
        ({"tolerance": {"percent": 5}}, "tolerance.percent: .*absolute, factor, relative"),
        ({"tolerance": {"factor": 0.5}}, "tolerance.factor=0.5"),
        ({"tolerance": {"factor": 2, "relative": 1}}, "tolerance: .*relative, absolute, factor"),
        ({"needs": {"gpus": 4}}, "needs.gpus: .*accelerator, board, devices"),
        (
            {"needs": {"accelerator": "fake"}},
            "needs.accelerator='fake': .*real, computed, published, scaled, emulated, any",
        ),
        ({"each": {"rtt_ms": "all"}}, "combine"),
        ({"each": {"rtt_ms": 3}, "combine": "least"}, "each=.*rtt_ms"),
        ({"combine": "least"}, "combine.*each"),
        ({"each": {"over.loader": 3}, "combine": "least"}, "over.loader with all"),
        ({"each": {"over.host": "all"}, "combine": "least"}, "not 'host'"),
        ({"each": {"over.loader": "all"}, "combine": "least", "over": None}, "no over"),
        ({"each": {"rtt_ms": "all", "loader": "all"}, "combine": "knee"}, "one key in each"),
        ({"is": "above", "tolerance": {"relative": 0.1}}, "tolerance with is=above: expected none"),
        ({"needs": {"samples": 0}}, "needs.samples=0"),
        ({"needs": {"sample_kb": 115}}, "needs.sample_kb=115"),
        ({"metric": "setup_s"}, "settled: expected false, for setup_s"),
        ({"settled": "yes"}, "settled='yes'"),
        ({"as": "furlongs"}, "as='furlongs': .*factor, less"),
        ({"of": ["dali"]}, r"of=\['dali'\]"),
    ],
)
def test_what_is_wrong_in_a_claim_is_named(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ResultsError, match=message) as caught:
        read_claims(written(tmp_path, {**CLAIM, **changed}))
    assert str(tmp_path / "paper.yaml") in str(caught.value)


def test_an_entry_with_for_is_a_claim_of_each_combination(tmp_path: Path) -> None:
    entry = {
        **CLAIM,
        "for": {"loader": ["dali", "pytorch"], "rtt": {10: "near", 30: "far away"}},
        "id": "one_${loader}_${rtt}ms",
        "text": "It is $paper as slow with $loader, $rtt.",
        "of": {"loader": "$loader", "rtt_ms": "$rtt"},
        "over": {"loader": "streaming"},
        "paper": {"ratio": ["emlio/fig5/epoch_s/$loader/$rtt", "emlio/fig5/epoch_s/streaming/$rtt"]},
    }
    found = read_claims(written(tmp_path, entry))
    assert [one.id for one in found] == ["one_dali_10ms", "one_dali_30ms", "one_pytorch_10ms", "one_pytorch_30ms"]
    assert found[1].of == {"loader": "dali", "rtt_ms": 30}
    assert (found[0].claim, found[3].claim) == (
        "It is 3.53× as slow with DALI, near.",
        "It is 27.1× as slow with PyTorch, far away.",
    )
    with pytest.raises(ResultsError, match=r"claim one.*for="):
        read_claims(written(tmp_path, {**CLAIM, "for": ["dali"]}))


def test_within_a_range_that_the_paper_gives_passes(tmp_path: Path) -> None:
    (claim,) = read_claims(written(tmp_path, {**CLAIM, "paper": "minato/fig7/speech_3s/pytorch"}))
    assert [claim.bound.holds(value) for value in (3.4, 3.6, 5.4, 5.6)] == [False, True, True, False]
    assert claim.bound.expected(claim.style) == "3.5× to 5.5×"


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
    assert set(list_packaged("claims")) == {
        "aa",
        "cassandra_dali",
        "emlio",
        "minato",
        "minato_model",
        "spdl",
        "textbook",
    }
    for one in found:
        assert one.claim.endswith(".") and one.id.startswith(one.figure), one.id
        assert one.bound.holds(one.bound.paper) != (one.bound.kind in ("above", "below")), one.id


def test_a_sentence_of_more_or_less_does_not_hold_where_nothing_differs() -> None:
    for one in make_definitions():
        if one.over is not None and one.bound.paper != 1 and one.style in ("factor", "less"):
            assert not one.bound.holds(1.0), one.id


def test_every_figure_of_which_claims_are_made_is_there() -> None:
    figures = {one.figure for one in make_definitions()}
    drawn = set(list_packaged("experiment"))
    check_figures((figures & drawn) - {"aa", "emlio_behind", "server_memory"})
    assert {f"minato_fig{name}" for name in ("1b", "2", "3", "4", "7", "8", "9", "10", "11", "12")} <= figures


def test_the_sums_of_kilojoules_are_those_of_their_parts() -> None:
    for entry in ("fig9", "fig10"):
        for loader, by_rtt in read_paper_figure(f"emlio/{entry}").energy_kj.items():
            for rtt_ms, energy in by_rtt.items():
                total = low(find_values(f"emlio/{entry}/total_kj/{loader}/{rtt_ms:g}"))
                assert total == pytest.approx(sum_kj(energy)[0])


def test_loaders_workloads_and_figures_that_claims_name_are_those_of_the_configuration() -> None:
    experiments = list_packaged("experiment").values()
    loaders, workloads = (
        {key for path in experiments for key in re.findall(rf"{group}\.(\w+)", path.read_text())}
        for group in ("loaders", "workloads")
    )
    for one in make_definitions():
        sides = [one.of, one.over or {}, *({values.key: list(values.listed)} for values in one.each)]
        for side in sides:
            for key, known in (("loader", loaders), ("workload", workloads)):
                named = side.get(key, [])
                assert set(named if isinstance(named, list) else [named]) <= known, one.id


def test_where_a_paper_contradicts_itself_is_told_with_the_claim(tmp_path: Path) -> None:
    (claim,) = read_claims(written(tmp_path, {**CLAIM, "conflict": "The abstract says 8.6 times."}))
    assert claim.conflict == "The abstract says 8.6 times."


def test_a_conflict_of_one_value_is_told_with_the_claims_of_that_value() -> None:
    conflicts = {one.id: one.conflict for one in make_definitions()}
    assert conflicts["minato_table2_unet3d_high"] == "Figure 2 has up to 2.5 s in image segmentation."
    assert conflicts["minato_table2_unet3d_low"] == ""
    assert conflicts["emlio_fig8_energy_1ms"] == conflicts["emlio_fig8_throughput_1ms"] != ""
