"""Every claim of the papers can be met and can be failed, and a claim that cannot is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from harness.config import list_packaged
from harness.config.specs import Experiment
from harness.errors import ConfigError
from harness.report.claims import FAIL, PASS
from harness.report.claims.definition import Definition
from harness.report.claims.reader import make_definitions, read_claims
from harness.report.claims.rows import Row, make_claim_rows
from harness.report.claims.verdict import evaluate
from harness.results.cells import CellRecord
from harness.results.epoch_row import EpochRow, write_rows
from harness.results.files import parse_value, write_json
from harness.results.folder import RunFolder, RunPlan
from harness.results.metrics import EpochMetrics
from harness.results.reader import read_results
from tests.report.conftest import hash_of, write_config
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


def write_folder(folder: Path, rows: Sequence[Row]) -> Path:
    """Write rows of a claim as the results folder of a run in which they were measured."""
    loaders = _write_loaders([row.labels for row in rows])
    places = {_name_workload(row.labels): _part(row.labels, "workload") for row in rows}
    delays = {_name_regime(row.labels): float(str(row.labels["rtt_ms"])) for row in rows}
    regimes = {key: {"rtt_ms": rtt, "rate_gbit": 1.0 if rtt else None} for key, rtt in delays.items()}
    config = {
        "name": "witness",
        "dataset": {"_target_": "d", "name": "d", **_part(rows[0].labels, "dataset")},
        "accelerator": {"kind": "emulated", **_part(rows[0].labels, "accelerator")},
        "workloads": places,
        "loaders": loaders,
        "regimes": regimes,
    }
    variants = Experiment.from_config(
        {**config, "workloads": {key: {"_target_": "w", **one} for key, one in places.items()}}, stored=True
    ).loaders.values()
    run, cells, epochs, metrics = RunFolder(folder), {}, [], []
    run.cells.mkdir(parents=True)
    write_config(run, config)
    for row in rows:
        wanted = _part(row.labels, "loader")
        setting = row.labels.get("setting")
        (key,) = [
            one.key
            for one in variants
            if one.base == row.labels["loader"]
            and wanted.items() <= one.params.items()
            and (setting is None or setting in one.setting.values())
        ]
        named = {"loader": key, "workload": _name_workload(row.labels), "regime": _name_regime(row.labels)}
        about = {**named, "cell_id": f"c{hash_of(row.cell_id)}", "repeat": int(row.cell_id.rpartition(" r")[2])}
        stored = _store(row)
        epochs.append(_make(EpochRow, {**about, **stored, "epoch": row.epoch, "valid": "valid"}))
        metrics.append(
            _make(EpochMetrics, {**about, **stored, "epoch": row.epoch, "ranks": row.labels.get("ranks") or 1})
        )
        cells.setdefault(about["cell_id"], (about, []))[1].append(row)
    write_json(run.plan, parse_value(RunPlan, {"run_id": "5f0c9a1e", "cells": [about for about, _ in cells.values()]}))
    write_rows(epochs, EpochRow, run.epochs_parquet, run.epochs_csv)
    write_rows(metrics, EpochMetrics, run.metrics_parquet, run.metrics_csv)
    for about, own in cells.values():
        home = run.cell_folder(str(about["cell_id"]))
        home.mkdir()
        boards = [f"GPU-{place}" for place in range(own[0].devices)]
        record = {
            **about,
            "regime": {"name": about["regime"], **regimes[str(about["regime"])]},
            "dataset": {"name": "d", "samples": own[0].labels["samples"], "bytes": 1},
            "accelerator": {"label": own[0].accelerator, "boards": boards},
            "energy": {"interval_ms": 100.0},
        }
        write_json(home / "cell.json", parse_value(CellRecord, record))
        _write_batches(home / "batches.parquet", own)
    return folder


def _part(labels: Mapping[str, object], section: str) -> dict[str, object]:
    return {key.partition(".")[2]: value for key, value in labels.items() if key.startswith(f"{section}.")}


def _name_regime(labels: Mapping[str, object]) -> str:
    return f"at_{labels['rtt_ms']:g}" if labels["regime"] == "any" else str(labels["regime"])


def _name_workload(labels: Mapping[str, object]) -> str:
    params = "_".join(f"{value:g}" for value in _part(labels, "workload").values() if isinstance(value, int | float))
    return f"any_{params.replace('.', '')}" if labels["workload"] == "any" else str(labels["workload"])


def _write_loaders(every: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """Return the config of loaders: what differs between rows of one loader is its sweep."""
    found: dict[str, object] = {}
    for name in dict.fromkeys(str(labels["loader"]) for labels in every):
        own = [labels for labels in every if labels["loader"] == name]
        params = [_part(labels, "loader") for labels in own]
        sweep = {
            key: list(values)
            for key in dict.fromkeys(key for one in params for key in one)
            if len(values := dict.fromkeys(one[key] for one in params if key in one)) > 1
        }
        settings = list(dict.fromkeys(labels["setting"] for labels in own if "setting" in labels))
        sweep |= {"num_workers": settings} if settings else {}
        constant = {key: value for one in params for key, value in one.items() if key not in sweep}
        found[name] = {"_target_": "l", **constant, **({"sweep": sweep} if sweep else {})}
    return found


def _store(row: Row) -> dict[str, object]:
    """Return what a folder stores of a row's values, of which the derived ones are made."""
    values, duration_s = dict(row.values), row.values["duration_s"]
    samples = int(str(row.labels["samples"]))
    derived = {
        "busy_share": lambda share: {"stall_s": duration_s * (1 - share)},
        "until_first_batch_s": lambda seconds: {"setup_s": seconds / 2, "first_batch_s": seconds / 2},
        "cpu_s_per_sample": lambda seconds: {"cell_cpu_s": seconds * samples},
        "ranks_wait_share": lambda share: {"ranks_wait_s": duration_s * share},
        "link_share": lambda share: {"mb_per_s": 125 * share},
        "cpu_system_share": lambda share: {"cpu_system_s": 100 * share, "cpu_user_s": 100 * (1 - share)},
    }
    for name in derived.keys() & values.keys():
        values |= derived[name](values[name])
    size = round(1e3 * samples * float(str(row.labels["sample_kb"])))
    return {"stall_s": 0.0, **values, "samples": samples, "bytes": size, "energy_source": "cpu=rapl;gpu=nvml"}


def _make(row_type: Any, values: Mapping[str, object]) -> Any:
    """Return a row of a class, with 0 or nothing for what is not given."""
    kinds = {field.name: str(field.type) for field in fields(row_type)}
    blank = {name: None if "None" in kind else "" if kind == "str" else 0 for name, kind in kinds.items()}
    return row_type(**{**blank, **{name: value for name, value in values.items() if name in kinds}})


def _write_batches(path: Path, rows: Sequence[Row]) -> None:
    """Write batches of which a row's metric is made; none for a metric that is made of others."""
    name = next((name for name in rows[0].values if name.startswith(("work_", "slow_", "loss_"))), "")
    if not name:
        return
    make = _make_work if name.startswith("work_") else _make_order
    made = [(row.epoch, *batch) for row in rows for batch in make(name, row)]
    epochs, ids, work_s = zip(*made, strict=True)
    table = {
        "epoch": pa.array(epochs, pa.int32()),
        "ids": pa.array(ids, pa.list_(pa.int64())),
        "work_s": pa.array(work_s, pa.list_(pa.float64())),
    }
    pq.write_table(pa.table(table), path)


_Batch = tuple[Sequence[int], Sequence[float]]
"""Ids of samples, and what their preprocessing took in seconds."""


def _make_work(name: str, row: Row) -> list[_Batch]:
    """Return two samples in a batch, whose preprocessing times have a row's mean and percentiles, or deviation."""
    seconds, apart = row.values[name] / 1e3, 2.0 if name == "work_std_ms" else 0.0
    return [([0, 1], [(1 - apart / 2) * seconds, (1 + apart / 2) * seconds])]


def _make_order(name: str, row: Row) -> list[_Batch]:
    """Return two batches over which slow samples are spread as a row says, in an order of the loader's own."""
    slow, fast = range(_SLOW), range(_SLOW, 4 * _SLOW)
    early = {"slow_first_half": lambda share: share * _SLOW, "slow_batch_std": lambda std: _SLOW / 2 + std}
    first = round(early[name](row.values[name])) if name in early else _SLOW // 2
    if row.labels["loader"] != "pytorch":
        slow, fast = slow[::-1], fast[::-1]
    ids = [[*slow[:first], *fast[: 2 * _SLOW - first]], [*slow[first:], *fast[2 * _SLOW - first :]]]
    return [(batch, [1.0 if one < _SLOW else 0.1 for one in batch]) for batch in ids]


_SLOW = 1000
"""Slow samples, a quarter of all."""


@pytest.mark.parametrize("paper", list_packaged("claims"))
def test_every_claim_passes_on_one_folder_and_fails_on_another(paper: str, tmp_path: Path) -> None:
    for definition in read_claims(list_packaged("claims")[paper]):
        metrics = {definition.metric} | ({"reordered_share"} if definition.needs.reordered else set())
        for verdict in (PASS, FAIL):
            folder = write_folder(tmp_path / f"{definition.id}_{verdict}", make_witness(definition, verdict))
            claim = evaluate(definition, make_claim_rows(read_results(folder), metrics))
            assert claim.verdict == verdict, (definition.id, claim)
