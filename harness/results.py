"""The results folder: names of what is in it, and writes that are whole or absent."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.errors import ResultsError

__all__ = ["Results", "new_folder", "write_json", "write_whole"]


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that it is seen whole or not at all."""
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented JSON, whole or not at all."""
    write_whole(path, (json.dumps(value, indent=2, default=str) + "\n").encode())


def new_folder(results_dir: Path, name: str) -> Path:
    """Make an empty folder named by UTC time with ms and `name`; returns it."""
    results_dir.mkdir(parents=True, exist_ok=True)
    while True:
        stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H-%M-%S.%f")[:-3] + "Z"
        folder = results_dir / f"{stamp}_{name}"
        try:
            folder.mkdir()
        except FileExistsError:  # another run of the same millisecond
            continue
        return folder


class Results:
    """One run's folder; `results/README.md` tells what each file holds."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / "config.yaml"
        self.plan = folder / "plan.json"
        self.ledger = folder / "ledger.jsonl"
        self.provenance = folder / "provenance.json"
        self.checks = folder / "checks.json"
        self.epochs_csv = folder / "epochs.csv"
        self.epochs_parquet = folder / "epochs.parquet"
        self.metrics_csv = folder / "metrics.csv"
        self.metrics_parquet = folder / "metrics.parquet"
        self.energy = folder / "energy.sqlite"
        self.cells = folder / "cells"

    @classmethod
    def create(cls, results_dir: Path, experiment: str) -> Results:
        """Make a new folder named by UTC time with ms; `point_latest` once its plan is written."""
        results = cls(new_folder(results_dir, experiment))
        results.cells.mkdir()
        return results

    @classmethod
    def find(cls, name: str, results_dir: Path) -> Results:
        """Return an existing run's folder by path, by name in `results_dir`, or 'latest'."""
        for candidate in (Path(name), results_dir / name):
            if (candidate / "plan.json").is_file():
                return cls(candidate.resolve())
        there = sorted(p.parent.name for p in results_dir.glob("*/plan.json") if not p.parent.is_symlink())
        hint = f"; the newest there: {', '.join(there[-3:])}" if there else ""
        raise ResultsError(f"{name}: no run with a plan.json there or in {results_dir}{hint}")

    def point_latest(self) -> None:
        """Point `latest` beside the folder at it."""
        link = self.folder.parent / "latest"
        fresh = link.with_name(f".latest-{os.getpid()}")
        with suppress(FileNotFoundError):
            fresh.unlink()
        fresh.symlink_to(self.folder.name)
        fresh.replace(link)

    def cell(self, cell_id: str) -> Path:
        """Return the folder of a finished cell."""
        return self.cells / cell_id

    def partial(self, cell_id: str) -> Path:
        """Return the folder of a cell that runs or has failed."""
        return self.cells / f"{cell_id}.partial"

    def is_done(self, cell_id: str) -> bool:
        """Whether the cell is whole."""
        return (self.cell(cell_id) / "cell.json").is_file()

    def new_provenance(self) -> Path:
        """Return where this session's provenance goes: a resumed run keeps that of each session."""
        n, path = 1, self.provenance
        while path.exists():
            n += 1
            path = self.folder / f"provenance-{n}.json"
        return path

    def set_aside(self, cell_id: str) -> None:
        """Keep what an earlier try of a cell left, under a name of its own, so that a new try starts clean."""
        partial = self.partial(cell_id)
        if not partial.exists():
            return
        n = 1
        while (aside := self.cells / f"{cell_id}.failed-{n}").exists():
            n += 1
        partial.rename(aside)
