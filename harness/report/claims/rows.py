"""What claims are judged on: one row an epoch, with all that it can be selected by and all that is known of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from harness.report.claims.composition import measure_compositions
from harness.report.claims.metrics import METRICS
from harness.report.measurements import epochs
from harness.results.reader import Results


@dataclass(frozen=True, slots=True)
class Row:
    """An epoch that was measured."""

    cell_id: str
    epoch: int
    labels: Mapping[str, object]
    """What it is selected by: workload, loader, regime, rtt_ms (0 for local files), samples, and the config's keys as
    "loader.num_workers"."""
    key: str
    """The loader's key in the run: pytorch_num_workers_4."""
    values: Mapping[str, float]
    """By metric. An unknown value is absent."""
    verdict: str
    """valid, or why not."""
    estimated: frozenset[str] = frozenset()
    """Domains whose joules are an estimate."""
    accelerator: str = ""
    """Its label; empty where it is unknown."""
    devices: int = 1


def make_claim_rows(results: Results, *, composed: bool = False) -> tuple[Row, ...]:
    """Return the rows of a results folder; `composed` with the figures of batches, for which every batch is read."""
    accelerators = {cell.cell_id: cell.accelerator for cell in results.cells}
    stored = {(row.cell_id, row.epoch): row for row in results.rows}
    batches = measure_compositions(results) if composed else {}
    found = []
    for record in epochs(results).to_dict("records"):
        key = (str(record["cell_id"]), int(record["epoch"]))
        row = stored[key]
        known: dict[str, object] = {str(name): value for name, value in record.items()}
        known |= {"mb_per_s": row.mb_per_s, "stall_s": row.stall_s, "total_j": row.total_j}
        known |= {f"{domain}_j": joules for domain, joules in row.joules.items()} | (
            batches[key].figures if key in batches else {}
        )
        found.append(
            Row(
                *key,
                labels=_labels(results, known),
                key=row.loader,
                values=_values(known),
                verdict=row.valid,
                estimated=row.estimated,
                accelerator=accelerators.get(row.cell_id, ""),
            )
        )
    return tuple(found)


def _labels(results: Results, record: Mapping[str, object]) -> Mapping[str, object]:
    loader, workload, regime = str(record["loader"]), str(record["workload"]), str(record["regime"])
    experiment = results.experiment
    sections = {
        "loader": experiment.loaders[loader].params,
        "workload": experiment.workloads[workload].params,
        "accelerator": experiment.accelerator.model_dump(),
        "dataset": experiment.datasets[workload].params,
    }
    settings = {f"{part}.{key}": value for part, section in sections.items() for key, value in section.items()}
    streamed = results.streaming is not None and "streaming" not in results.loaders and loader == results.streaming
    return {
        **settings,
        "workload": workload,
        "loader": "streaming" if streamed else experiment.loaders[loader].base,
        "regime": regime,
        "rtt_ms": experiment.regimes[regime].rtt_ms,
        "samples": record["samples"],
        "ranks": record["ranks"],
    }


def _values(record: Mapping[str, object]) -> Mapping[str, float]:
    numbers = {name: value for name, value in record.items() if isinstance(value, int | float)}
    known = {name: float(numbers[name]) for name in METRICS if name in numbers and not math.isnan(numbers[name])}
    if known.get("duration_s") and "stall_s" in known:
        known["busy_share"] = 1 - known["stall_s"] / known["duration_s"]
    if "loader_made_s" in known and "first_batch_s" in known:
        known["until_first_batch_s"] = known["loader_made_s"] + known["first_batch_s"]
    if "cell_cpu_s" in known and numbers.get("samples"):
        known["cpu_s_per_sample"] = known["cell_cpu_s"] / numbers["samples"]
    if known.get("duration_s") and "ranks_wait_s" in known:
        known["ranks_wait_share"] = known["ranks_wait_s"] / known["duration_s"]
    return known
