"""python -m harness.papers: every item has a command or a reason, runs go on, the scorecard is of kept runs."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from harness.config import list_packaged
from harness.papers import run as runner
from harness.papers.__main__ import main
from harness.papers.items import find_partial, find_runs, list_experiments, list_papers
from harness.papers.machines import make_machines_page
from harness.papers.score import MOST_KB, count_kept, make_scorecard
from harness.report import read_report
from harness.report.claims.reader import make_definitions
from harness.report.render import write_claims
from harness.results.collect import collect
from harness.results.epoch_row import EpochRow, read_rows, write_rows
from harness.results.files import write_json
from harness.results.folder import RunFolder
from tests.harness.test_validate import run as validated

REPO = Path(__file__).parents[2]
OF_NO_PAPER = {"aa", "smoke", "gpu_smoke", "wan30ms", "minato_fig8"}  # a run of minato_fig7 draws figure 8, too


@pytest.fixture
def paper_run(tmp_path, stored):
    """Return a whole run of emlio_fig5, with a figure."""
    run = validated.__wrapped__(tmp_path, stored)
    write_json(run.plan, {**json.loads(run.plan.read_text()), "experiment": "emlio_fig5"})
    collect(run)
    write_claims(read_report(run.folder))
    (run.folder / "figures").mkdir(exist_ok=True)
    (run.folder / "report.html").touch()
    Image.effect_noise((1500, 900), 90).save(run.folder / "figures" / "emlio_fig5.png")
    return run


def test_every_experiment_and_every_claim_is_of_an_item():
    items = [item for paper in list_papers().values() for item in paper.items]
    assert all(bool(item.experiment) != bool(item.absent) for item in items)
    assert {item.experiment for item in items} - {""} == set(list_packaged("experiment")) - OF_NO_PAPER
    figures = {item.figure or item.experiment for item in items}
    assert {one.figure for one in make_definitions()} - figures == {"aa"}


def test_the_list_has_each_item_s_command_and_its_last_verdicts(paper_run, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["--out", str(paper_run.folder.parent)]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if "EMLIO figure 5 " in line)
    assert "+experiment=emlio_fig5" in line
    assert "21–" in line
    assert main(["--paper", "none"]) == 2


def test_a_run_does_what_is_missing_resumes_what_was_interrupted_and_stops_at_a_signal(paper_run, monkeypatch, capsys):
    out = paper_run.folder.parent
    partial = RunFolder.create(out, "emlio_fig7")
    write_json(partial.plan, {**json.loads(paper_run.plan.read_text()), "experiment": "emlio_fig7"})
    write_json(partial.config, json.loads(paper_run.config.read_text()))
    commands: list[Sequence[str]] = []
    statuses = iter([2, 0, 3, 4])

    def run(words, report):
        commands.append(words[0])
        return next(statuses)

    monkeypatch.setattr(runner, "run_harness", run)
    arguments = ["run", "--paper", "emlio", "--out", str(out), "--experiments"]
    assert main([*arguments, "emlio_fig5", "emlio_fig7", "emlio_fig8"]) == 3
    assert commands == [f"resume={partial.folder.name}", "+experiment=emlio_fig7", "+experiment=emlio_fig8"]
    assert main([*arguments, "emlio_fig10"]) == 4
    assert "emlio_fig10: this machine lacks what it needs" in capsys.readouterr().err
    assert main([*arguments, "emlio_fig99"]) == 2
    page = (out / "emlio.html").read_text()
    assert "figures/emlio_fig5.png" in page
    assert "not run here" in page
    assert find_partial(out, "emlio_fig9", "small") is None
    assert list_experiments(list_papers("emlio"))[0] == "aa"


def test_the_scorecard_is_of_kept_runs_that_validate(paper_run, tmp_path, capsys):
    out, kept, page = paper_run.folder.parent, tmp_path / "kept", tmp_path / "scorecard.md"
    arguments = ["score", "--out", str(out), "--kept", str(kept), "--page", str(page)]
    assert main(arguments) == 0
    assert page.read_text() == make_scorecard(list_papers(), kept)
    assert "| – NOT CHECKED | 21 |" in page.read_text()
    assert "PyTorch's epoch takes 24.1× as long" in page.read_text()
    assert (kept / "emlio_fig5" / "emlio_fig5.png").stat().st_size <= 1000 * MOST_KB
    assert not [file for file in kept.rglob("*.json") if str(Path.home()) in file.read_text()]
    assert set(find_runs([out], "small")) == {"emlio_fig5"}
    claims = json.loads(paper_run.claims.read_text())
    claims[0]["verdict"] = "PASS"
    write_json(paper_run.claims, claims)
    assert main(arguments) == 2
    assert "states something else" in capsys.readouterr().err


def test_the_scorecard_of_the_docs_and_the_counts_of_the_readme_are_of_the_kept_runs():
    kept, papers = REPO / "benchmarks/results/papers", list_papers()
    machines = make_machines_page(REPO / "benchmarks/results/machines")
    assert (REPO / "docs/machines.md").read_text() == machines, "python -m harness.papers submit"
    assert (REPO / "docs/scorecard.md").read_text() == make_scorecard(papers, kept), "python -m harness.papers score"
    counts = count_kept(papers, kept)
    words = ", ".join(f"{counts[verdict]} {verdict}" for verdict in ("PASS", "FAIL", "INCONCLUSIVE", "NOT CHECKED"))
    assert f"{words} ([docs/scorecard.md](docs/scorecard.md))" in " ".join((REPO / "README.md").read_text().split())


def test_runs_are_handed_in_and_machines_stand_side_by_side(paper_run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").mkdir()
    hand_in = ["submit", str(paper_run.folder), "--machine"]
    assert main([*hand_in, "Two Cores"]) == 2
    assert "expected lower-case words" in capsys.readouterr().err
    assert main([*hand_in, "two-cores"]) == 2
    assert "its code is that of commit unknown" in capsys.readouterr().err
    host = {"cpu": {"value": "Fast CPU"}, "logical_cpus": {"value": 2}, "hostname": {"value": "secret"}}
    write_json(paper_run.provenance, {"source": {"commit": {"value": 40 * "a"}}, "host": host})
    collect(paper_run)
    assert main([*hand_in, "two-cores"]) == main([*hand_in, "another"]) == 0
    kept = tmp_path / "benchmarks" / "results" / "machines"
    assert "secret" not in (kept / "another" / "emlio_fig5" / "provenance.json").read_text()
    page = (tmp_path / "docs" / "machines.md").read_text()
    assert "| two-cores | Fast CPU, 2 processors |" in page
    assert "| workload | regime | loader | another | two-cores |" in page
    assert "| resnet50 | local | pytorch | 4 s, " in page
    rows = read_rows(paper_run.epochs_parquet, EpochRow)
    write_rows(
        [replace(row, valid="invalid: steal") for row in rows], EpochRow, paper_run.epochs_parquet, tmp_path / "csv"
    )
    assert main([*hand_in, "two-cores"]) == 2
    assert "resnet50 · local · pytorch: no row is valid" in capsys.readouterr().err
