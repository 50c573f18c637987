"""Results folders as a run leaves them, small and with known figures."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness.config.specs import Experiment
from harness.results.cells import Cell, CellRecord, FailedCell, LinkRecord
from harness.results.checks import Check
from harness.results.epoch_row import EpochRow, make_schema, write_rows
from harness.results.files import parse_value, write_json
from harness.results.folder import LedgerEntry, RunFolder, RunPlan
from harness.results.metrics import EpochMetrics

REGIMES = {
    "local": {"rtt_ms": 0, "rate_gbit": None, "jitter_ms": 0.0, "loss_pct": 0.0},
    "lan_0_1ms": {"rtt_ms": 0.1, "rate_gbit": 1.0, "jitter_ms": 0.0, "loss_pct": 0.0},
    "lan_1ms": {"rtt_ms": 1, "rate_gbit": 1.0, "jitter_ms": 0.0, "loss_pct": 0.0},
    "lan_10ms": {"rtt_ms": 10, "rate_gbit": 1.0, "jitter_ms": 0.0, "loss_pct": 0.0},
    "wan_20ms": {"rtt_ms": 20, "rate_gbit": 1.0, "jitter_ms": 0.0, "loss_pct": 0.0},
    "wan_150ms": {"rtt_ms": 150, "rate_gbit": 1.0, "jitter_ms": 0.0, "loss_pct": 0.0},
    "wan_30ms": {"rtt_ms": 30, "rate_gbit": 1.0, "jitter_ms": 0.0, "loss_pct": 0.0},
    "wan_lossy": {"rtt_ms": 30, "rate_gbit": 1.0, "jitter_ms": 2.0, "loss_pct": 0.1},
}
TARGETS = {
    "pytorch": {"_target_": "loaders.pytorch.PyTorchLoader", "reads": "files", "num_workers": 4},
    "dali": {"_target_": "loaders.dali.DaliLoader", "reads": "files", "num_threads": 2},
    "streaming": {"_target_": "loaders.streaming.StreamingLoader", "reads": "stream", "streams": 2},
    "nosql": {"_target_": "loaders.nosql.NoSQLLoader", "reads": "stream"},
    "mosaic": {"_target_": "loaders.mosaic.MosaicLoader", "reads": "stream"},
    "tfdata": {"_target_": "loaders.tfdata.TfDataLoader", "reads": "stream"},
    "fixed": {"_target_": "loaders.shared.fixed.FixedBatchLoader", "reads": "once"},
}
# Seconds per epoch: a base and what each ms of RTT adds.
EPOCH_S = {"pytorch": (1.9, 0.43), "dali": (1.7, 0.36), "streaming": (1.72, 0.0012), "fixed": (0.95, 0.0)}
EPOCH_S |= {"nosql": (1.0, 0.0008), "mosaic": (1.4, 0.006), "tfdata": (0.9, 0.08)}
ESTIMATED = "cpu=estimate;gpu=estimate"
MEASURED = "cpu=rapl-powercap;dram=rapl-powercap;gpu=nvml-counter"


class FolderBuilder:
    """Writes one results folder; every part can be left out or changed before `write`."""

    def __init__(
        self,
        folder: Path,
        *,
        name: str = "wan30ms",
        loaders: tuple[str, ...] = ("pytorch", "dali", "streaming"),
        regimes: tuple[str, ...] = ("lan_0_1ms", "wan_30ms"),
        repeats: int = 3,
        energy_source: str = ESTIMATED,
        scatter: float = 0.02,
        accelerator: str = "emulated: A100",
        streams: int = 2,
        placement: str = "remote",
        dataset: str = "harness.datasets.imagenet_like.ImagenetLike",
    ) -> None:
        self.folder = folder
        emulated = accelerator.startswith("emulated")
        citation = "MLPerf Storage v1.0, ResNet-50: 0.435 s per batch of 400" if emulated else None
        self.accelerator = {"label": accelerator, "emulated": emulated, "citation": citation}
        self.config: dict[str, Any] = {
            "name": name,
            "description": "PyTorch, DALI and the streaming daemon: seconds and joules per epoch",
            "workloads": {"resnet50": {"_target_": "harness.workloads.vision.Vision", "batch_size": 32}},
            "loaders": {key: dict(TARGETS[key]) for key in loaders},
            "regimes": {key: dict(REGIMES[key]) for key in regimes},
            "repeats": repeats,
            "epochs": 1,
            "seed": 0,
            "dataset": {"_target_": dataset, "name": "imagenet_small", "samples": 500},
            "placement": placement,
            "figures": ["emlio_fig5"],
        }
        if "streaming" in loaders:
            self.config["loaders"]["streaming"]["streams"] = streams
        self.placement = {"kind": placement, "remote_samples": 251, "remote_bytes": 28_900_000}
        random_ = random.Random(7)
        self.cells: dict[str, dict[str, Any]] = {}
        self.failures: dict[str, str] = {}
        self.rows: dict[str, dict[str, Any]] = {}
        self.links: dict[str, dict[str, Any]] = {}
        self.events: list[dict[str, Any]] = []
        self.checks: list[Check] = []
        for repeat in range(repeats):
            for regime in regimes:
                for loader in loaders:
                    self._cell(loader, regime, repeat, energy_source, 1 + random_.uniform(-scatter, scatter))

    def _cell(self, loader: str, regime: str, repeat: int, energy_source: str, luck: float) -> None:
        cell_id = f"{loader}-resnet50-{regime}-r{repeat}-{abs(hash_of(loader, regime, repeat)):06x}"
        rtt_ms = float(REGIMES[regime]["rtt_ms"])
        base, per_ms = EPOCH_S[loader]
        duration_s = round((base + per_ms * rtt_ms) * luck, 4)
        local = regime == "local"
        self.cells[cell_id] = {
            "cell_id": cell_id,
            "loader": loader,
            "workload": "resnet50",
            "regime": {"name": regime, **REGIMES[regime]},
            "repeat": repeat,
            "placement": self.placement,
            "mount": "local" if local else ("sshfs" if loader != "streaming" else "none: streamed"),
            "notes": ["crop parameters are drawn by DALI's own generator"] if loader == "dali" else [],
            "accelerator": self.accelerator,
            "dataset": {"name": "imagenet_small", "samples": 500, "bytes": 57_600_000},
            "energy": {"interval_ms": 100.0},
        }
        self.rows[cell_id] = self._row(cell_id, loader, regime, repeat, duration_s, energy_source)
        told = {"t_utc": f"2025-11-20T13:{repeat:02d}:{len(self.rows):02d}Z", "cell_id": cell_id, "message": ""}
        self.events += [{**told, "event": event} for event in ("started", "done")]
        for rule, expected, actual in (
            ("exactly_once", "500 ids once", "500 ids once"),
            ("missed_ticks", "< 1 %", "0 %"),
            *(() if local else (("rtt_before", f"{rtt_ms:g} ms ± 5 %", f"{rtt_ms * 1.004 + 0.02:.3f} ms"),)),
        ):
            self.check(cell_id, rule, expected, actual, "pass")
        if not local:
            seen_ms = rtt_ms * 1.004 + 0.02
            probe = {"rtt_ms_median": seen_ms, "rtt_ms_min": seen_ms, "rtt_ms_p99": seen_ms, "rtt_samples": 100}
            probe["rate_gbit"] = 0.987
            self.links[cell_id] = {
                "kind": "relay",
                "before": probe,
                "after": {**probe, "rate_gbit": 0.979},
                "epochs": [{"epoch": 0, "rx_bytes": 59_800_000, "tx_bytes": 910_000, "drops": 0, "link_cpu_s": 0.31}],
            }

    def settle(self, longer_s: float = 3.0, setup_s: float = 0.5) -> FolderBuilder:
        """Give every cell an epoch before its own that took longer; returns the builder."""
        self.config["epochs"] = 2
        for cell_id, row in list(self.rows.items()):
            self.rows[f"{cell_id} first"] = row | {"duration_s": row["duration_s"] + longer_s, "setup_s": setup_s}
            self.rows[cell_id] = row | {"epoch": row["epoch"] + 1}
        return self

    def _row(
        self, cell_id: str, loader: str, regime: str, repeat: int, duration_s: float, energy_source: str
    ) -> dict[str, Any]:
        compute_s = 0.54
        measured = "rapl" in energy_source
        joules = {"cpu_j": round(7.9 * duration_s, 2), "gpu_j": round(80 * duration_s + 320 * compute_s, 2)}
        if measured:
            joules["dram_j"] = round(1.4 * duration_s, 2)
        return {
            "cell_id": cell_id,
            "workload": "resnet50",
            "dataset": "imagenet_small",
            "loader": loader,
            "regime": regime,
            **{key: REGIMES[regime][key] for key in ("rtt_ms", "jitter_ms", "loss_pct")},
            "repeat": repeat,
            "epoch": 0,
            "start_utc": "2025-11-20T13:00:00.000Z",
            "end_utc": "2025-11-20T13:00:10.000Z",
            "duration_s": duration_s,
            "samples": 500,
            "bytes": 57_600_000,
            "samples_per_s": round(500 / duration_s, 2),
            "mb_per_s": round(57.6 / duration_s, 3),
            "stall_s": round(duration_s - compute_s, 4),
            "au": round(compute_s / duration_s, 4),
            "cpu_util": 0.61,
            "gpu_util": None,
            "dram_j": None,
            **joules,
            "total_j": round(sum(joules.values()), 2),
            "energy_error_j": 3.1 if measured else None,
            "energy_source": energy_source,
            "valid": "valid",
        }

    def ids(self, *, loader: str | None = None, regime: str | None = None) -> list[str]:
        """Return the ids of the cells of a loader and a regime."""
        return [
            cell_id
            for cell_id, cell in self.cells.items()
            if loader in {None, cell["loader"]} and regime in {None, cell["regime"]["name"]}
        ]

    def fail(self, cell_id: str, reason: str) -> None:
        """Make a cell one that failed before its epoch ended."""
        self.failures[cell_id] = reason
        del self.rows[cell_id]
        self._event(cell_id, "failed", reason)

    def interrupt_after(self, done: int) -> None:
        """Make the cell after the first `done` ones the interrupted one, and the rest never started."""
        ids = list(self.cells)
        for cell_id in ids[done:]:
            del self.rows[cell_id]
            self.events = [event for event in self.events if event["cell_id"] != cell_id]
            self.links.pop(cell_id, None)
        self._event(ids[done], "interrupted", "interrupted by signal 15")

    def invalidate(self, cell_id: str, rule: str, expected: str, actual: str) -> None:
        """Make a cell's row break a rule."""
        self.rows[cell_id]["valid"] = f"invalid: {rule}"
        self.check(cell_id, rule, expected, actual, "fail")

    def check(self, cell_id: str, rule: str, expected: str, actual: str, verdict: str) -> None:
        """Give a cell's epoch another check."""
        self.checks.append(Check(cell_id, 0, rule, expected, actual, verdict))

    def _event(self, cell_id: str, event: str, message: str) -> None:
        self.events = [old for old in self.events if (old["cell_id"], old["event"]) != (cell_id, "done")]
        self.events.append({"t_utc": "2025-11-20T13:09:00Z", "cell_id": cell_id, "event": event, "message": message})

    def write(self, *, epochs: bool = True) -> Path:
        """Write the folder with what a run writes it with; without rows when `epochs` is false."""
        run = RunFolder(self.folder)
        run.cells.mkdir(parents=True, exist_ok=True)
        write_config(run, self.config)
        names = ("cell_id", "loader", "workload", "repeat")
        cells = [
            Cell(regime=cell["regime"]["name"], **{name: cell[name] for name in names}) for cell in self.cells.values()
        ]
        write_json(run.plan, RunPlan(run_id="5f0c9a1e", experiment=self.config["name"], cells=cells))
        write_json(run.provenance, PROVENANCE)
        write_json(run.checks, [asdict(check) for check in self.checks])
        run.ledger.write_text("".join(json.dumps(asdict(LedgerEntry(**event))) + "\n" for event in self.events))
        finished = {event["cell_id"] for event in self.events if event["event"] != "interrupted"}
        for cell_id, cell in self.cells.items():
            if cell_id in self.failures:
                run.partial_folder(cell_id).mkdir(exist_ok=True)
                known = {name: cell[name] for name in ("cell_id", "loader", "workload", "regime", "repeat")}
                failed = {**known, "status": "failed", "failure": self.failures[cell_id]}
                write_json(run.partial_folder(cell_id) / "cell.json", parse_value(FailedCell, failed))
            elif cell_id in finished:
                home = run.cell_folder(cell_id)
                home.mkdir(exist_ok=True)
                write_json(home / "cell.json", parse_value(CellRecord, cell))
                write_json(home / "link.json", parse_value(LinkRecord, self.links.get(cell_id, {})))
        if epochs:
            rows = [EpochRow(**row) for row in self.rows.values()]
            write_rows(rows, EpochRow, run.epochs_parquet, run.epochs_csv)
        return self.folder


def write_config(run: RunFolder, config: Mapping[str, Any]) -> None:
    """Write a config, in which every workload and loader has a class."""
    groups = {
        group: {key: {"_target_": "module.Class", **section} for key, section in config[group].items()}
        for group in ("workloads", "loaders")
    }
    write_json(run.config, {**config, **groups})  # JSON is YAML


def hash_of(*parts: object) -> int:
    return random.Random(repr(parts)).getrandbits(24)


def _field(value: object, source: str) -> dict[str, object]:
    return {"value": value, "source": source}


PROVENANCE: Mapping[str, Any] = {
    "command": _field("python -m harness +experiment=wan30ms repeats=3", "sys.argv"),
    "host": {
        "name": _field("bench-01", "uname"),
        "kernel": _field("6.18.0-x86_64", "uname"),
        "cpu": _field("Intel Xeon Processor @ 2.80GHz", "/proc/cpuinfo"),
        "logical_cpus": _field(2, "os.cpu_count"),
        "memory_gib": _field(7.8, "/proc/meminfo"),
        "governor": _field("not reported by this kernel", "/sys/devices/system/cpu"),
    },
    "packages": {
        "torch": _field("2.9.1", "importlib.metadata"),
        "nvidia-dali-cuda130": _field("1.52.0", "importlib.metadata"),
        "pyzmq": _field("27.1.0", "importlib.metadata"),
    },
    "testbed": {
        "kind": _field("netns", "config"),
        "link": _field({"kind": "relay", "mtu": 1500, "congestion_control": "cubic"}, "link"),
        "caches": _field("vm.drop_caches", "testbed"),
    },
}


@pytest.fixture
def build(tmp_path: Path) -> Iterator[Callable[..., FolderBuilder]]:
    """Return a maker of results folders: build(regimes=..., ...)."""
    count = 0

    def make(**options: Any) -> FolderBuilder:
        nonlocal count
        count += 1
        return FolderBuilder(tmp_path / f"2025-11-20T13-00-00.{count:03d}Z_wan30ms", **options)

    yield make


class SweepBuilder:
    """Writes the folder of a run of swept loaders over several workloads, with metrics and preprocessing times."""

    def __init__(
        self,
        folder: Path,
        *,
        figures: tuple[str, ...],
        workloads: tuple[str, ...] = ("resnet50",),
        loaders: Mapping[str, Any] | None = None,
        regimes: tuple[str, ...] = ("local",),
        epochs: int = 2,
        samples: int = 60,
    ) -> None:
        self.folder, self.epochs, self.samples = folder, epochs, samples
        self.verdict, self.repeats = "valid", 1
        self.accelerator, self.model_check = "none: no load", ""
        self.config: dict[str, Any] = {
            "name": figures[0].rpartition(".")[2],
            "description": "a sweep",
            "workloads": {key: {"_target_": "w"} for key in workloads},
            "dataset": {"_target_": "d", "name": "tiny"},
            "loaders": dict(loaders or {"pytorch": {"_target_": "p", "sweep": {"num_workers": [1, 2, 4]}}}),
            "regimes": {key: dict(REGIMES[key]) for key in regimes},
            "epochs": max(1, epochs),
            "seed": 0,
            "figures": list(figures),
        }
        self.rows: list[dict[str, Any]] = []
        self.metrics: list[dict[str, Any]] = []
        self.work_s: dict[str, list[float]] = {}
        """Preprocessing times of every epoch, by workload; what is not here is not told by the loader."""

    def write(self) -> Path:
        cells = []
        for workload in self.config["workloads"]:
            variants = Experiment.from_config(self.config, stored=True).loaders.values()
            for variant, regime, repeat in product(variants, self.config["regimes"], range(1, self.repeats + 1)):
                cell_id = f"{variant.key}-{workload}-{regime}-r{repeat}"
                at = {"cell_id": cell_id, "workload": workload, "loader": variant.key, "regime": regime}
                cells.append({**at, "repeat": repeat})
                self._cell(cell_id, at, repeat, float(next(iter(variant.setting.values()), 1)))
        self.folder.mkdir(parents=True)
        run = RunFolder(self.folder)
        write_config(run, self.config)
        write_json(run.plan, parse_value(RunPlan, {"run_id": "5f0c9a1e", "cells": cells}))
        write_rows([EpochRow(**row) for row in self.rows], EpochRow, run.epochs_parquet, run.epochs_csv)
        metrics = [EpochMetrics(**metric) for metric in self.metrics]
        write_rows(metrics, EpochMetrics, run.metrics_parquet, run.metrics_csv)
        for cell in cells:
            self._stored(cell)
        return self.folder

    def _cell(self, cell_id: str, at: Mapping[str, str], repeat: int, setting: float) -> None:
        rtt_ms = float(REGIMES[at["regime"]]["rtt_ms"])
        # A file takes three round trips, after which it is decoded in 1 ms.
        epoch_s = 1e-3 * self.samples * (1.0 + 3.0 * rtt_ms / setting) if rtt_ms else 4.0 / setting
        for epoch in range(1, self.epochs + 1):
            duration_s = epoch_s + (1.0 if epoch == 1 else 0.0)
            row = {"dataset": "tiny", "rtt_ms": rtt_ms, "repeat": repeat, "epoch": epoch, "valid": self.verdict}
            row |= {"duration_s": duration_s, "samples": self.samples, "bytes": 1_000_000, "energy_source": ""}
            row |= dict.fromkeys(("cpu_util", "gpu_util", "cpu_j", "dram_j", "gpu_j", "total_j", "energy_error_j"))
            row |= {"start_utc": "2025-11-20T13:00:00.000Z", "end_utc": "2025-11-20T13:00:10.000Z"}
            row |= {"samples_per_s": self.samples / duration_s, "mb_per_s": 1.0, "stall_s": 1.0, "au": 0.5}
            row |= {"setup_s": 0.25 if epoch == 1 else None}
            self.rows.append({**at, **row})
            metric = dict.fromkeys(make_schema(EpochMetrics).names) | {
                "cell_id": cell_id,
                "epoch": epoch,
                "cell_cpu_s": 3.0,
                "ranks": 1,
                "skipped_samples": 0,
            }
            metric |= {"first_batch_s": 0.5 * setting, "batch_p50_s": 0.1, "batch_p95_s": 0.2, "batch_p99_s": 0.3}
            metric |= {"steady_samples_per_s": 20 * setting, "pss_peak_bytes": 500_000_000}
            self.metrics.append(metric)

    def _stored(self, cell: Mapping[str, Any]) -> None:
        home = self.folder / "cells" / str(cell["cell_id"])
        home.mkdir(parents=True)
        record = {
            **cell,
            "regime": {"name": cell["regime"], **REGIMES[str(cell["regime"])]},
            "dataset": {"name": "tiny", "samples": self.samples, "bytes": 1_000_000},
            "accelerator": {"label": self.accelerator},
            "model_check": self.model_check,
            "energy": {"interval_ms": 100.0},
        }
        write_json(home / "cell.json", parse_value(CellRecord, record))
        times = self.work_s.get(str(cell["workload"]))
        count = len(times) if times else 1
        table = {
            "epoch": pa.array(range(1, self.epochs + 1), pa.int32()),
            "ids": pa.array([list(range(count))] * self.epochs, pa.list_(pa.int64())),
            "work_s": pa.array([times] * self.epochs, pa.list_(pa.float64())),
        }
        pq.write_table(pa.table(table), home / "batches.parquet")


@pytest.fixture
def build_sweep(tmp_path: Path) -> Callable[..., SweepBuilder]:
    """Return a maker of folders of swept loaders: build_sweep(figures=..., loaders=..., ...)."""
    return lambda **options: SweepBuilder(tmp_path / "2025-11-20T14-00-00.001Z_sweep", **options)
