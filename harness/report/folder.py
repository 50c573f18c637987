"""A results folder, finished or not, as typed values; the only thing that the report reads."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from harness.config.sweep import Variant, variants
from harness.errors import ResultsError
from harness.report.reading import CELL, COLLECT, mapping, read_json, reading
from harness.report.rows import EpochRow, read_rows

__all__ = ["Cell", "Check", "Results", "read_results"]

Json = Mapping[str, Any]

_RUN_REMEDY = "restore it, or measure again"
_PROBES = ("before", "after")


@dataclass(frozen=True, slots=True)
class Cell:
    """A planned cell and what became of it."""

    cell_id: str
    loader: str
    workload: str
    regime: str
    repeat: int
    state: str
    """done, failed, interrupted, damaged, running or not run."""
    reason: str
    """Why the cell failed, was interrupted or cannot be read; empty otherwise."""
    mount: str
    """How the compute node reached the files: nfs4, sshfs, local; empty when unknown."""
    placement: Json
    """Kind, and samples and bytes that lie on the storage node; empty when unknown."""
    accelerator: str
    """The accelerator's label; empty when unknown."""
    citations: tuple[str, ...]
    """Where an emulated accelerator's step time, and its board power, were published."""
    notes: tuple[str, ...]
    skipped: Mapping[int, str]
    """Why the loader left samples out under on_error=skip, by id, of all epochs."""
    link: Json
    """link.json: the probe before and after, and the link's cost per epoch; empty without a link."""
    measured_again: int = 0
    """How often its rows were invalid before, and it was measured again."""
    memory_bytes: float | None = None
    """Most that its processes had together; None without a limit."""


@dataclass(frozen=True, slots=True)
class Check:
    """One validity rule's result on one epoch, or on a whole cell when epoch is None."""

    cell_id: str
    epoch: int | None
    rule: str
    expected: str
    actual: str
    verdict: str


@dataclass(frozen=True)
class Results:
    """Everything that a results folder says."""

    folder: Path
    config: Json
    run_id: str
    cells: tuple[Cell, ...]
    rows: tuple[EpochRow, ...]
    checks: tuple[Check, ...]
    provenance: Json
    """Of the first session."""
    later: Mapping[str, Json]
    """Provenance of the sessions in which it was resumed, by file."""
    started_utc: str
    """The ledger's first instant; empty when nothing started."""
    ended_utc: str

    @property
    def name(self) -> str:
        """The experiment's name."""
        return str(self.config.get("name") or self.folder.resolve().name)

    @property
    def description(self) -> str:
        """The experiment in one sentence; may be empty."""
        return str(self.config.get("description") or "")

    @cached_property
    def loaders(self) -> tuple[str, ...]:
        """Loader keys in the order of the config."""
        return self._keys(self.variants, "loader")

    @cached_property
    def variants(self) -> Mapping[str, Variant]:
        """The loaders of the config by key, each with the section it comes from and the setting of its sweep."""
        return variants(_mapping(self.config.get("loaders")))

    @cached_property
    def workloads(self) -> tuple[str, ...]:
        """Workload keys in the order of the config."""
        return self._keys(_mapping(self.config.get("workloads")), "workload")

    @cached_property
    def regimes(self) -> tuple[str, ...]:
        """Regime keys, nearest first."""
        return tuple(sorted(self._keys(_mapping(self.config.get("regimes")), "regime"), key=self.rtt_ms))

    @property
    def streaming(self) -> str | None:
        """The loader that the others are compared with: the one that is streamed to; None without one."""
        configs = self.config.get("loaders") or {}
        if "streaming" in self.loaders:
            return "streaming"
        streamed = (key for key in self.loaders if _mapping(configs.get(key)).get("reads") == "stream")
        return next(streamed, None)

    @property
    def placement(self) -> str:
        """Where the samples of regimes with a link lay: remote, half or local."""
        return str(self.config.get("placement") or "remote")

    @property
    def emulated(self) -> bool:
        """Whether the accelerator was emulated in any cell."""
        return any("emulated" in cell.accelerator for cell in self.cells)

    @property
    def unfinished(self) -> tuple[Cell, ...]:
        """Cells without a result."""
        return tuple(cell for cell in self.cells if cell.state != "done")

    def rtt_ms(self, regime: str) -> float:
        """Return a regime's round-trip time in ms; 0 when the folder does not say."""
        for row in self.rows:
            if row.regime == regime:
                return row.rtt_ms
        return float(_mapping(_mapping(self.config.get("regimes")).get(regime)).get("rtt_ms") or 0.0)

    def disturbance(self, regime: str) -> tuple[float, float]:
        """Return a regime's loss in per cent and its jitter in ms, each 0 when the folder does not say."""
        known = _mapping(_mapping(self.config.get("regimes")).get(regime))
        return float(known.get("loss_pct") or 0.0), float(known.get("jitter_ms") or 0.0)

    def is_local(self, regime: str) -> bool:
        """Return whether a regime has no link."""
        known = _mapping(_mapping(self.config.get("regimes")).get(regime))
        return known["rate_gbit"] is None if "rate_gbit" in known else self.rtt_ms(regime) == 0

    def rate_gbit(self, regime: str) -> float | None:
        """Return the cap of a regime's link in Gbit/s; None for local or unknown."""
        value = _mapping(_mapping(self.config.get("regimes")).get(regime)).get("rate_gbit")
        return None if value is None else float(value)

    def _keys(self, known: Iterable[str], field: str) -> tuple[str, ...]:
        used = [getattr(row, field) for row in self.rows] + [getattr(cell, field) for cell in self.cells]
        configured = [str(key) for key in known]
        return tuple(dict.fromkeys([*(key for key in configured if key in used or not used), *used]))


def read_results(folder: Path) -> Results:
    """Read a results folder, whole or interrupted.

    Raises ResultsError when the folder is not there, is not a results folder, or holds a file that is broken.
    """
    if not folder.is_dir():
        raise ResultsError(
            f"{folder}: no such results folder; expected the folder of a run, results/latest for the newest one"
        )
    if not (folder / "plan.json").exists() and not (folder / "epochs.csv").exists():
        raise ResultsError(
            f"{folder}: neither plan.json nor epochs.csv is here; expected the folder of one run, "
            "results/latest for the newest one"
        )
    config = _config(folder / "config.yaml")
    plan = _stored(folder / "plan.json", dict, _RUN_REMEDY)
    ledger = _ledger(folder / "ledger.jsonl")
    rows = read_rows(folder / "epochs.csv")
    checks = _checks(folder / "checks.json")
    instants = [str(entry["t_utc"]) for entry in ledger if entry.get("t_utc")]
    results = Results(
        folder=folder,
        config=config,
        run_id=str(plan.get("run_id") or ""),
        cells=_cells(folder, plan, ledger, rows, checks),
        rows=rows,
        checks=checks,
        provenance=_provenance(folder / "provenance.json"),
        later={
            path.name: _provenance(path)
            for path in sorted(folder.glob("provenance-*.json"), key=lambda path: (len(path.name), path.name))
        },
        started_utc=min(instants, default=""),
        ended_utc=max(instants, default=""),
    )
    with reading(folder / "config.yaml", _RUN_REMEDY):
        for regime in results.regimes:
            results.rtt_ms(regime), results.rate_gbit(regime), results.disturbance(regime)
    return results


def _cells(
    folder: Path, plan: Json, ledger: list[Json], rows: tuple[EpochRow, ...], checks: tuple[Check, ...]
) -> tuple[Cell, ...]:
    last = {str(entry.get("cell_id")): entry for entry in ledger}
    with reading(folder / "plan.json", _RUN_REMEDY):
        planned = [_planned(entry) for entry in plan.get("cells") or ()]
    if not planned:
        named = {row.cell_id: row for row in rows}
        planned = [
            {"cell_id": r.cell_id, "loader": r.loader, "workload": r.workload, "regime": r.regime, "repeat": r.repeat}
            for r in named.values()
        ]
    with_rows = {row.cell_id for row in rows if row.duration_s is not None}
    damaged = {check.cell_id: check.actual for check in checks if check.rule == "whole_cell"}
    return tuple(_cell(folder, entry, last.get(str(entry["cell_id"]), {}), with_rows, damaged) for entry in planned)


def _planned(entry: object) -> Json:
    cell = mapping(entry, "cells")
    names = {key: str(cell[key]) for key in ("cell_id", "loader", "workload", "regime")}
    return {**names, "repeat": int(cell.get("repeat") or 0)}


_STATES = {"started": "running", "done": "done", "failed": "failed", "interrupted": "interrupted"}


def _cell(folder: Path, planned: Json, last: Json, with_rows: set[str], damaged: Mapping[str, str]) -> Cell:
    cell_id = str(planned["cell_id"])
    home = folder / "cells" / cell_id
    broken = damaged.get(cell_id) if home.exists() else None
    whole = home if home.exists() else home.with_name(f"{cell_id}.partial")
    stored = {} if broken else _stored(whole / "cell.json", dict, CELL)
    event = str(last.get("event") or "")
    # The folder is the truth: a run may die between making a cell whole and noting it.
    whole_cell = (home / "cell.json").is_file() or cell_id in with_rows
    state = "damaged" if broken else "done" if whole_cell else _STATES.get(event, "not run")
    failure = broken or stored.get("failure") or (last.get("message") if state in {"failed", "interrupted"} else "")
    with reading(whole / "cell.json", CELL):
        accelerator = mapping(stored.get("accelerator"), "accelerator")
        skipped = [mapping(epoch["samples"], "skipped") for epoch in stored.get("skipped") or ()]
        limit = mapping(stored.get("memory"), "memory").get("limit_bytes")
        return Cell(
            **planned,
            state=state,
            reason="" if state == "done" else _failure_text(failure),
            mount=str(stored.get("mount") or ""),
            placement=_placement(mapping(stored.get("placement"), "placement")),
            accelerator=str(accelerator.get("label") or ""),
            citations=tuple(str(accelerator[key]) for key in ("citation", "power_citation") if accelerator.get(key)),
            notes=tuple(str(note) for note in stored.get("notes") or ()),
            skipped={int(key): str(why) for samples in skipped for key, why in samples.items()},
            link={} if broken else _link(home / "link.json"),
            measured_again=len(list(home.parent.glob(f"{cell_id}.invalid-*"))),
            memory_bytes=None if limit is None else float(limit),
        )


def _placement(stored: Json) -> Json:
    counts = {key: int(stored[key]) for key in ("remote_samples", "remote_bytes") if stored}
    return {**stored, **counts}


def _link(path: Path) -> Json:
    stored = _stored(path, dict, CELL)
    if not stored:
        return {}
    with reading(path, CELL):
        probes = {
            when: _numbers(stored[when], when, "rtt_ms_median", "rate_gbit") for when in _PROBES if when in stored
        }
        epochs = [
            _numbers(epoch, "epochs", "epoch", "link_cpu_s", "link_j", "drops") for epoch in stored.get("epochs") or ()
        ]
    return {**stored, **probes, "kind": str(stored.get("kind")), "epochs": epochs}


def _numbers(value: object, what: str, *keys: str) -> Json:
    """Return keys and values of which those of `keys` are numbers, or unknown."""
    found = mapping(value, what)
    return {**found, **{key: float(found[key]) for key in keys if found.get(key) is not None}}


def _failure_text(failure: object) -> str:
    if isinstance(failure, Mapping):
        return str(failure.get("message") or failure.get("reason") or json.dumps(dict(failure)))
    return str(failure or "")


def _checks(path: Path) -> tuple[Check, ...]:
    stored = _stored(path, list, COLLECT)
    with reading(path, COLLECT):
        return tuple(_check(mapping(entry, "a check")) for entry in stored)


def _check(entry: Json) -> Check:
    return Check(
        cell_id=str(entry.get("cell_id") or ""),
        epoch=None if entry.get("epoch") is None else int(entry["epoch"]),
        rule=str(entry.get("rule") or ""),
        expected=_text(entry.get("expected")),
        actual=_text(entry.get("actual")),
        verdict=str(entry.get("verdict") or "unknown"),
    )


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "" if value is None else str(value)


def _mapping(value: object) -> Json:
    return value if isinstance(value, Mapping) else {}


def _config(path: Path) -> Json:
    if not path.exists():
        return {}
    with reading(path, _RUN_REMEDY):
        config = mapping(OmegaConf.to_container(OmegaConf.load(path), resolve=False), "the config")
        if not (config.get("loaders") and config.get("workloads")):
            raise ValueError("it has no loaders or no workloads")
        for group in ("workloads", "loaders", "regimes"):
            for name, section in mapping(config.get(group), group).items():
                mapping(section, f"{group}.{name}")
        for section in ("dataset", "accelerator", "testbed"):
            mapping(config.get(section), section)
        figures = config.get("figures") or []
        if not isinstance(figures, list) or not all(isinstance(name, str) for name in figures):
            raise TypeError(f"figures: expected a list of names, got {figures!r:.60}")
        int(config.get("epochs") or 1), int(config.get("seed") or 0)
        return config


def _provenance(path: Path) -> Json:
    stored = _stored(path, dict, _RUN_REMEDY)
    with reading(path, _RUN_REMEDY):
        mapping(mapping(stored.get("dataset"), "dataset").get("skipped"), "dataset.skipped")
    return {**stored}


def _stored(path: Path, kind: type, remedy: str) -> Any:
    """Return what a JSON file has, an empty `kind` where there is no file."""
    if not path.exists():
        return kind()
    with reading(path, remedy):
        return read_json(path, kind)


def _ledger(path: Path) -> list[Json]:
    """Read the ledger's lines; a torn last line, as a killed run leaves, is left out."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    entries: list[Json] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            entries.append(mapping(json.loads(line), "an entry"))
        except (ValueError, TypeError) as error:
            if number < len(lines):
                raise ResultsError(f"{path}, line {number}: not valid JSON: {error}; remove the line") from error
    return entries
