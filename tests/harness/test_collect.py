"""A results folder with damaged cells: they are named, and the others are judged."""

import json
import os
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from omegaconf import OmegaConf

from energymon import save_readings
from harness.cell.epoch import BatchRecord
from harness.cell.events import save_events
from harness.config.specs import Tolerances
from harness.errors import ResultsError
from harness.results.cell_folder import write_manifest
from harness.results.collect import collect, find_invalid_cells, read_cells
from harness.results.epoch_row import EpochRow, read_rows
from harness.results.files import write_json
from harness.results.folder import FORMAT, RunFolder
from harness.validate.__main__ import main
from loaders.base import Samples
from tests.harness.records import change, store_batches

LIMITS = {"checks": {"others_cpu_pct": 100, "others_cpus": 100}}


def write_cell(results, data, repeat, **changed):
    cell_id = f"pytorch-resnet50-local-r{repeat}-0"
    folder = results.cell_folder(cell_id)
    folder.mkdir(exist_ok=True)
    changed = {"cell_id": cell_id, "repeat": repeat, **changed}
    write_json(folder / "cell.json", change(data, cell=changed).cell)
    write_json(folder / "link.json", {})
    save_events(list(data.events), folder / "events.parquet")
    batches = data.batches[1]
    pairs = zip(batches.ids.reshape(3, 2), batches.labels.reshape(3, 2), strict=True)
    records = [BatchRecord(10**9, 10**9, 1000, ids, None, labels=labels) for ids, labels in pairs]
    store_batches(records, 1, folder, keeps_labels=True)
    save_readings(list(data.readings), folder / "energy.parquet")
    pq.write_table(pa.table({}), folder / "resources.parquet")
    write_manifest(folder)
    return cell_id


def write_samples(results, sizes):
    names = [f"{n}.jpg" for n in range(len(sizes))]
    Samples(results.folder, names, np.arange(len(sizes)) % 4, np.array(sizes)).save(results.folder / "samples.parquet")


def write_plan(results, cell_ids):
    cells = [
        {"cell_id": one, "loader": "pytorch", "workload": "resnet50", "regime": "local", "repeat": n}
        for n, one in enumerate(cell_ids, 1)
    ]
    write_json(results.plan, {"format": FORMAT, "cells": cells})


@pytest.fixture
def results(tmp_path, stored):
    results = RunFolder.create(tmp_path, "smoke")
    cells = [write_cell(results, stored(), repeat) for repeat in (1, 2)]
    write_plan(results, cells)
    OmegaConf.save(LIMITS, results.config)
    write_samples(results, [500] * 6)
    return results


def test_whole_cells_are_judged_and_valid(results):
    found = collect(results)
    assert [row.valid for row in found.rows] == ["valid", "valid"] and not found.damaged


def test_the_rows_of_a_try_that_was_measured_again_are_kept_with_the_rules_that_refused_them(results):
    collect(results)
    assert not (results.folder / "refused.csv").exists()
    first, second = (cell.cell_id for cell in results.read_plan().cells)
    shutil.copytree(results.cell_folder(first), results.cells / f"{first}.invalid-1")
    OmegaConf.save({"checks": {"others_cpu_pct": 0, "others_cpus": 0}}, results.config)
    assert [row.cell_id for row in collect(results).rows] == [first, second]
    (refused,) = read_rows(results.folder / "refused.parquet", EpochRow)
    assert refused.cell_id == first and refused.valid.startswith("invalid: others_cpu (")


def truncated(path):
    path.write_bytes(path.read_bytes()[:-100])


def no_epoch(path):
    pq.write_table(pq.read_table(path).slice(0, 0), path)


def another_cell(path):
    path.write_text(json.dumps({**json.loads(path.read_text()), "cell_id": "another"}))


DAMAGE = [
    ("cell.json", lambda path: path.unlink()),
    ("cell.json", lambda path: path.write_text("")),
    ("cell.json", lambda path: path.write_text("[]")),
    ("cell.json", lambda path: path.write_bytes(b"\xff\x00")),
    ("cell.json", another_cell),
    ("link.json", lambda path: path.write_text("7")),
    ("events.parquet", no_epoch),
    ("batches.parquet", truncated),
    ("batches.parquet", no_epoch),
    ("batches.parquet", lambda path: path.write_bytes(b"")),
    ("energy.parquet", truncated),
    ("resources.parquet", lambda path: path.write_text("no parquet")),
]


@pytest.mark.parametrize(("name", "damage"), DAMAGE)
def test_a_damaged_cell_is_named_with_its_file_and_the_others_are_judged(results, capsys, name, damage):
    first, second = (cell.cell_id for cell in results.read_plan().cells)
    damage(results.cell_folder(first) / name)
    if (results.cell_folder(first) / name).exists():
        write_manifest(results.cell_folder(first))
    found = collect(results)
    assert [(row.cell_id, row.valid) for row in found.rows] == [(second, "valid")]
    assert set(found.damaged) == {first} and str(results.cell_folder(first) / name) in found.damaged[first]
    (check,) = [check for check in json.loads(results.checks.read_text()) if check["rule"] == "whole_cell"]
    assert (check["cell_id"], check["verdict"]) == (first, "fail")
    assert main(["--write", str(results.folder)]) == 3
    assert f"{first}: damaged:" in capsys.readouterr().out


def test_the_status_says_that_rows_are_invalid(results, capsys):
    OmegaConf.save({"checks": {"others_cpu_pct": 0, "others_cpus": 0}}, results.config)
    assert main(["--write", str(results.folder)]) == 6
    assert "2 rows, 0 valid" in capsys.readouterr().out


def test_find_invalid_cells_are_those_with_a_row_that_a_rule_refuses(results, stored):
    cell_id = write_cell(results, stored(), 3, clock="", clock_offset_ms=5.0)
    cells, _ = read_cells(results, [path.name for path in results.cells.iterdir()])
    assert find_invalid_cells(cells, Tolerances(**LIMITS["checks"])) == {cell_id}


@pytest.mark.parametrize("content", ["", "[]", '{"cells": [7]}', "\x00"])
def test_a_damaged_plan_is_one_error(results, content):
    results.plan.write_text(content)
    with pytest.raises(ResultsError, match=r"plan\.json"):
        collect(results)


@pytest.mark.parametrize(
    "content", ["- a", "a: [", "\x00", "", "a: 1", "checks: 7", "checks: {rtt_pct: soon}", "checks: {a: 1}"]
)
def test_a_damaged_config_is_one_error(results, content):
    results.config.write_text(content)
    with pytest.raises(ResultsError, match=r"config\.yaml"):
        collect(results)


def test_rows_of_another_place_are_marked_with_what_is_another(results, stored):
    for name, kernel in (("provenance.json", "6.1"), ("provenance-2.json", "6.2"), ("provenance-3.json", "6.1")):
        write_json(results.folder / name, {"host": {"kernel": {"value": kernel}}, "environment": {}})
    cells = [write_cell(results, stored(), 2 + n, provenance=f"provenance-{n}.json") for n in (2, 3, 4)]
    planned = [path.name for path in sorted(results.cells.iterdir())]
    write_plan(results, planned)
    told = {check.cell_id: check for check in collect(results).checks if check.rule == "same_place"}
    assert [told[cell_id].verdict for cell_id in planned] == ["pass", "pass", "warn", "pass", "warn"]
    assert told[cells[0]].actual == "host.kernel: 6.2, was 6.1"
    assert "provenance-4.json: " in told[cells[2]].actual


def test_damaged_samples_are_no_fault_of_any_cell(results):
    (results.folder / "samples.parquet").write_bytes(b"PAR1")
    with pytest.raises(ResultsError, match=r"samples\.parquet"):
        collect(results)


def test_sizes_of_other_samples_are_one_error(results):
    write_samples(results, [500] * 5 + [501])
    with pytest.raises(ResultsError, match=r"samples\.parquet: .*6.*3000"):
        collect(results)


@pytest.mark.parametrize("name", ["energy.parquet", "batches.parquet", "events.parquet", "link.json", "cell.json"])
def test_a_byte_that_has_changed_is_found_by_the_manifest(results, name):
    first, second = (cell.cell_id for cell in results.read_plan().cells)
    assert not collect(results).damaged
    path = results.cell_folder(first) / name
    content, before = path.read_bytes(), path.stat()
    for at in (len(content) // 4, len(content) // 2):
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        found = collect(results)
        assert set(found.damaged) == {first}
        assert found.damaged[first].startswith(f"{path}: ")
        assert [row.cell_id for row in found.rows] == [second]


def test_a_manifest_that_is_gone_or_broken_is_damage(results, stored):
    cell_id = write_cell(results, stored(), 1)
    manifest = results.cell_folder(cell_id) / "manifest.json"
    for content in ("", "[]", "\x00", None):
        if content is None:
            manifest.unlink()
        else:
            manifest.write_text(content)
        assert f"{manifest}: " in collect(results).damaged[cell_id]
