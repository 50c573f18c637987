"""What claims are judged on: one row an epoch, with all that it can be selected by and all that is known of it."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from harness.cell.messages import AcceleratorRecord
from harness.config import list_packaged
from harness.config.specs import Experiment
from harness.report.claims.composition import measure_compositions, measure_losses, measure_reordering
from harness.report.claims.metrics import METRICS, WORK
from harness.report.measurements import epochs
from harness.results.epoch_row import EpochRow
from harness.results.reader import Results


@dataclass(frozen=True, slots=True)
class ClaimRow:
    """An epoch that was measured."""

    cell_id: str
    epoch: int
    labels: Mapping[str, object]
    """What it is selected by: workload, loader, regime, rtt_ms (0 for local files), samples, ranks, the setting of a
    sweep, and the config's keys as "loader.num_workers"; `sample_kb`, the mean size of its samples; `listed`, the paths
    of the list that its samples carry, None for theirs alone; and `rate_gbit`,
    the rate of its regime, where that has a link."""
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
    devices: int = 0
    """Real boards that its ranks used."""
    stored: EpochRow | None = None
    """The row of epochs.csv; None in a claim that is tried without a run."""
    repeat: int | None = None
    """The repeat of its cell; None where it is unknown."""
    model_check: str = ""
    """The published times that its samples replay; empty for a measurement."""


def make_claim_rows(results: Results, metrics: Collection[str] = ()) -> tuple[ClaimRow, ...]:
    """Return the rows of a results folder; of the metrics of batches, which are read for them, those of `metrics`."""
    records = {cell.cell_id: cell.record for cell in results.cells if cell.record}
    stored = {(row.cell_id, row.epoch): row for row in results.rows}
    batches = _read_batches(results, metrics)
    found = []
    for record in epochs(results).to_dict("records"):
        key = (str(record["cell_id"]), int(record["epoch"]))
        row, of = stored[key], records.get(key[0])
        accelerator = of.accelerator if of else AcceleratorRecord()
        known: dict[str, object] = {str(name): value for name, value in record.items()}
        rate_gbit = results.experiment.regimes[row.regime].rate_gbit
        known |= {"link_share": row.mb_per_s / (125 * rate_gbit)} if row.mb_per_s and rate_gbit else {}
        known |= batches.get(key, {})
        found.append(
            ClaimRow(
                *key,
                labels=_labels(results, known),
                key=row.loader,
                values=_values(known),
                verdict=row.valid,
                estimated=row.estimated,
                accelerator=accelerator.label,
                devices=len(accelerator.boards or ()),
                stored=row,
                repeat=row.repeat,
                model_check=of.model_check if of else "",
            )
        )
    return tuple(found)


def _read_batches(results: Results, metrics: Collection[str]) -> Mapping[tuple[str, int], Mapping[str, float]]:
    """Return the metrics of batches that are asked for, as far as they are known, by (cell id, epoch)."""
    parts: list[Mapping[tuple[str, int], Mapping[str, float]]] = []
    if any(name.startswith("slow_") for name in metrics):
        parts.append({key: one.figures for key, one in measure_compositions(results).items()})
    if "reordered_share" in metrics:
        parts.append({key: {"reordered_share": share} for key, share in measure_reordering(results).items()})
    if "loss_meanwhile" in metrics:
        parts.append({key: {"loss_meanwhile": loss} for key, loss in measure_losses(results).items()})
    keys = {key for part in parts for key in part}
    return {key: {name: value for part in parts for name, value in part.get(key, {}).items()} for key in keys}


def _labels(results: Results, record: Mapping[str, object]) -> Mapping[str, object]:
    loader, regime = str(record["loader"]), str(record["regime"])
    labels = label_cell(results.experiment, loader, str(record["workload"]), regime)
    # A section of the user's own that reads the only stream stands for the streaming loader.
    own = labels["loader"] not in list_packaged("loader")
    streamed = own and "streaming" not in results.loaders and loader == results.streaming
    return {
        **labels,
        "loader": "streaming" if streamed else labels["loader"],
        "samples": record["samples"],
        "sample_kb": _divide(record["bytes"], 1e3 * _divide(record["samples"], 1)),
        "ranks": record["ranks"],
        "setting": None if math.isnan(float(str(record["setting"]))) else record["setting"],
    }


def label_cell(experiment: Experiment, loader: str, workload: str, regime: str) -> dict[str, object]:
    """Return what the config says of a cell: the labels of its rows that need no measurement."""
    sections = {
        "loader": experiment.loaders[loader].params,
        "workload": experiment.workloads[workload].params,
        "accelerator": experiment.accelerator.model_dump(),
        "dataset": experiment.datasets[workload].params,
    }
    return {
        **{f"{part}.{key}": value for part, section in sections.items() for key, value in section.items()},
        "workload": workload,
        "loader": experiment.loaders[loader].base,
        "listed": experiment.loaders[loader].listed,
        "regime": regime,
        "rtt_ms": experiment.regimes[regime].rtt_ms,
        "rate_gbit": experiment.regimes[regime].rate_gbit,
    }


def _divide(above: object, below: float) -> float:
    """Return a ratio; 0 where it is not known."""
    return float(above) / below if isinstance(above, int | float) and below else 0.0


def _values(record: Mapping[str, object]) -> Mapping[str, float]:
    numbers = {name: value for name, value in record.items() if isinstance(value, int | float)}
    known = {name: float(numbers[name]) for name in METRICS if name in numbers and not math.isnan(numbers[name])}
    for metric, stored in WORK.items():
        if not math.isnan(work_s := numbers.get(stored, math.nan)):
            known[metric] = 1e3 * work_s
    if known.get("duration_s") and "stall_s" in known:
        known["busy_share"] = 1 - known["stall_s"] / known["duration_s"]
    if "setup_s" in known and "first_batch_s" in known:
        known["until_first_batch_s"] = known["setup_s"] + known["first_batch_s"]
    if "cell_cpu_s" in known and numbers.get("samples"):
        known["cpu_s_per_sample"] = known["cell_cpu_s"] / numbers["samples"]
    if known.get("duration_s") and "ranks_wait_s" in known:
        known["ranks_wait_share"] = known["ranks_wait_s"] / known["duration_s"]
    if known.get("duration_s") and numbers.get("samples") and numbers.get("rtt_ms"):
        known["round_trips"] = 1e3 * known["duration_s"] / numbers["samples"] / numbers["rtt_ms"]
        if not math.isnan(readers := numbers.get("readers", math.nan)):
            known["reader_round_trips"] = readers * known["round_trips"]
    user_s, system_s = (numbers.get(name) for name in ("cpu_user_s", "cpu_system_s"))
    if user_s is not None and system_s is not None and user_s + system_s > 0:
        known["cpu_system_share"] = system_s / (user_s + system_s)
    return known
