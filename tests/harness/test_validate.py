"""Anybody's results folder judged again: what was changed in it is named in one line, and the folder stays as it is."""

import csv
import hashlib
import json
from dataclasses import replace
from importlib import import_module
from pkgutil import iter_modules

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from energymon import save_readings
from harness.cell.events import save_events
from harness.config.experiment import config_hash
from harness.config.specs import Tolerances
from harness.errors import DIFFERS, ResultsError
from harness.report import read_report
from harness.report.render import write_claims
from harness.results import checks
from harness.results.cell_folder import load_cell, write_manifest
from harness.results.collect import collect
from harness.results.epoch_row import EpochRow, read_rows, write_rows
from harness.results.files import write_json
from harness.results.folder import RunFolder
from harness.validate.__main__ import main
from tests.harness.records import S
from tests.harness.test_collect import LIMITS, write_cell, write_plan, write_samples
from tests.report.conftest import REGIMES, TARGETS, write_config


@pytest.fixture
def run(tmp_path, stored):
    """Return the folder of a run of two cells on local files, judged."""
    run = RunFolder.create(tmp_path, "smoke")
    cells = [write_cell(run, stored(), repeat) for repeat in (1, 2)]
    config = {
        "name": "emlio",
        "workloads": {"resnet50": {"batch_size": 2}},
        "loaders": {"pytorch": TARGETS["pytorch"]},
        "regimes": {"local": REGIMES["local"]},
        "dataset": {"_target_": "harness.datasets.imagenet_like.ImagenetLike", "name": "tiny", "samples": 6},
        "repeats": 2,
        "figures": ["emlio_fig5"],
        **LIMITS,
    }
    write_config(run, config)
    write_plan(run, cells)
    write_json(run.plan, {**json.loads(run.plan.read_text()), "config_hash": config_hash(run.read_config())})
    write_json(run.provenance, {"host": {"kernel": {"value": "6.1", "source": "uname", "how": "measured"}}})
    write_samples(run, [500] * 6)
    collect(run)
    write_claims(read_report(run.folder))
    return run


def cell_of(run):
    return run.cell_folder(run.read_plan().cells[0].cell_id)


def contents(run):
    return {path: path.read_bytes() for path in run.folder.rglob("*") if path.is_file()}


def test_a_folder_that_states_what_its_files_contain_has_no_difference_and_is_not_touched(run, capsys):
    before = contents(run)
    assert main([str(run.folder)]) == 0
    said = capsys.readouterr().out.splitlines()[-1]
    assert said.startswith("2 rows, 2 valid; ") and said.endswith("claims: the folder states the same")
    assert contents(run) == before


def edit_json(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def edit_row(run, **changed):
    rows = read_rows(run.epochs_parquet, EpochRow)
    write_rows([replace(rows[0], **changed), rows[1]], EpochRow, run.epochs_parquet, run.epochs_csv)


def edit_csv(run):
    rows = list(csv.reader(run.epochs_csv.open()))
    rows[1][rows[0].index("valid")] = "invalid: spread"
    with run.epochs_csv.open("w") as file:
        csv.writer(file).writerows(rows)


def edit_check(run):
    def flip(content):
        next(one for one in content if one["rule"] == "exactly_once")["verdict"] = "fail"

    edit_json(run.checks, flip)


def edit_events(run):
    """Shorten an epoch, with checksums that fit: the rows tell."""
    data = load_cell(cell_of(run))
    events = [{**one, "duration_ns": 2 * S} if one["event"] == "epoch_end" else one for one in data.events]
    save_events(events, cell_of(run) / "events.parquet")
    write_manifest(cell_of(run))


def edit_ids(run):
    path = cell_of(run) / "batches.parquet"
    table = pq.read_table(path)
    ids = [[0, 0], *table["ids"].to_pylist()[1:]]
    place = table.column_names.index("ids")
    pq.write_table(table.set_column(place, "ids", pa.array(ids, table["ids"].type)), path)
    write_manifest(cell_of(run))


def remove_readings(run):
    data = load_cell(cell_of(run))
    save_readings(list(data.readings)[:20], cell_of(run) / "energy.parquet")
    write_manifest(cell_of(run))


CELL = "pytorch-resnet50-local-r1-0"
TAMPERED = {
    "a row's duration": (
        lambda run: edit_row(run, duration_s=3.0),
        f"epochs.parquet: {CELL} epoch 1: duration_s: stated 3, found 4",
    ),
    "a row's joules": (lambda run: edit_row(run, cpu_j=1.0), f"epochs.csv: {CELL} epoch 1: cpu_j: stated 1, found 400"),
    "a verdict in epochs.csv alone": (
        edit_csv,
        f"epochs.csv: {CELL} epoch 1: valid: stated invalid: spread, found valid",
    ),
    "a row that is gone": (
        lambda run: write_rows(
            read_rows(run.epochs_parquet, EpochRow)[1:], EpochRow, run.epochs_parquet, run.epochs_csv
        ),
        f"epochs.parquet: {CELL} epoch 1: found, and not stated",
    ),
    "a check": (edit_check, f"checks.json: {CELL} exactly_once epoch 1: verdict: stated fail, found pass"),
    "a claim": (
        lambda run: edit_json(run.claims, lambda content: content[0].update(verdict="PASS")),
        "claims.json: emlio_fig5_constant_time: verdict: stated PASS, found NOT CHECKED",
    ),
    "an epoch's end": (edit_events, f"epochs.parquet: {CELL} epoch 1: duration_s: stated 4, found 2; "),
    "a cell's checksums": (edit_events, f"manifest.json: cells/{CELL}/manifest.json: SHA-256: stated "),
    "a batch's ids": (
        edit_ids,
        f"checks.json: {CELL} exactly_once epoch 1: actual: stated 0 missing, 0 repeated, 0 unknown, found 1 missing, "
        "1 repeated, 0 unknown; verdict: stated pass, found fail",
    ),
    "readings": (remove_readings, f"checks.json: {CELL} missed_ticks epoch 1: actual: stated 0 of 40 ticks"),
    "the provenance": (
        lambda run: edit_json(run.provenance, lambda content: content["host"]["kernel"].update(value="6.2")),
        "manifest.json: provenance.json: SHA-256: stated ",
    ),
    "the config": (
        lambda run: edit_json(run.config, lambda content: content.update(repeats=3)),
        "config.yaml: is not that of the plan: stated hash ",
    ),
    "a limit": (
        lambda run: edit_json(run.config, lambda content: content.update(checks={"others_cpu_pct": 50})),
        f"checks.json: {CELL} others_cpu epoch 1: expected: stated CPU of others ≤ 100 % of the CPUs",
    ),
    "a file that is cut": (
        lambda run: (cell_of(run) / "batches.parquet").write_bytes(b"PAR1"),
        f"cells/{CELL}: damaged: batches.parquet: cannot be read (it has changed since the cell ended)",
    ),
    "a table that is cut": (lambda run: run.epochs_parquet.write_bytes(b""), "epochs.parquet: cannot be read (it is"),
    "a refused try that never was": (
        lambda run: write_rows(
            read_rows(run.epochs_parquet, EpochRow)[:1], EpochRow, run.refused_parquet, run.refused_csv
        ),
        "refused.parquet: stated, and not found",
    ),
    "a file that is missing": (lambda run: run.claims.unlink(), "claims.json: is missing"),
    "a record that is cut": (
        lambda run: run.provenance.write_text("{"),
        "claims.json: cannot be judged: RUN/provenance.json: cannot be read",
    ),
}


@pytest.mark.parametrize("what", TAMPERED)
def test_what_was_changed_is_named(run, capsys, what):
    tamper, named = TAMPERED[what]
    tamper(run)
    before = contents(run)
    assert main([str(run.folder)]) == DIFFERS
    lines = capsys.readouterr().out.splitlines()
    named = named.replace("RUN", str(run.folder))
    assert len([line for line in lines if line.startswith(named)]) == 1, "\n".join(lines)
    assert contents(run) == before


@pytest.mark.parametrize("name", ["plan.json", "config.yaml", "samples.parquet"])
def test_a_folder_that_cannot_be_judged_is_one_error_with_its_own_path(run, capsys, name):
    (run.folder / name).write_bytes(b"")
    assert main([str(run.folder)]) == ResultsError.exit_status
    assert capsys.readouterr().err.startswith(f"error: {run.folder / name}: cannot be read")


def test_other_rules_and_limits_of_a_folder_are_said(run, capsys):
    edit_json(run.config, lambda content: content.update(checks={"spread_pct": 40}))
    assert main(["--write", str(run.folder)]) == 0
    edit_json(run.manifest, lambda content: content.update(rules_edition=checks.RULES_EDITION + 1))
    capsys.readouterr()
    assert main([str(run.folder)]) == 0
    first, second, _ = capsys.readouterr().out.splitlines()
    edition = checks.RULES_EDITION
    assert first == f"note: judged by rules of edition {edition + 1}, here by edition {edition}: verdicts may differ"
    assert second == "note: limits of its own: spread_pct=40 (10 by default)"


EDITIONS = {1: "34839dadbc61", 2: "7c2d4854feed", 3: "7c2d4854feed", 4: "7c2d4854feed"}
"""Each edition of the rules by what it consists of. A change of the rules adds one; the older ones stay."""


def test_the_edition_rises_with_the_rules():
    assert EDITIONS.get(checks.RULES_EDITION) == describe_rules(), (
        "the rules have changed: raise RULES_EDITION in harness/results/checks, and add to EDITIONS "
        f"what the new edition consists of: {describe_rules()}"
    )
    assert max(EDITIONS) == checks.RULES_EDITION


def describe_rules():
    """Return a checksum of the names of rules, of the default limits, and of the limits that the rules have in code."""
    modules = [checks, *(import_module(f"{checks.__name__}.{one.name}") for one in iter_modules(checks.__path__))]
    named = {name: value for module in modules for name, value in vars(module).items() if name.isupper()}
    limits = {name: value for name, value in named.items() if isinstance(value, int | float)}
    del limits["RULES_EDITION"]
    text = json.dumps([sorted(checks.RULES), Tolerances().model_dump(), limits], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
