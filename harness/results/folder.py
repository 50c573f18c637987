"""The results folder: names of what is in it, and writes that are whole or absent."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import platform
import shlex
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from harness.errors import ResultsError

__all__ = ["Results", "new_folder", "resume_command", "write_json", "write_whole"]


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that it is seen whole or not at all, whatever process writes it at the same time."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
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


def resume_command(folder: Path, results_dir: str) -> str:
    """Return the command that goes on with the run of a folder in `results_dir`."""
    words = ["python", "-m", "harness", f"resume={folder.name}"]
    return shlex.join([*words, f"results_dir={results_dir}"] if results_dir != "results" else words)


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
        self.lock = folder / ".lock"

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

    def point_latest(self) -> str | None:
        """Point `latest` beside the folder at it; returns why that cannot be done, where it cannot."""
        link = self.folder.parent / "latest"
        if link.exists() and not link.is_symlink():
            return f"{link} is no symbolic link"
        fresh = link.with_name(f".latest-{os.getpid()}")
        fresh.unlink(missing_ok=True)
        try:
            fresh.symlink_to(self.folder.name)
            fresh.replace(link)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
            return f"{link} cannot be a symbolic link ({error.strerror})"
        return None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other runs out of the folder; the lock ends with this process, however it ends.

        Raises ResultsError naming the process that has it.
        """
        descriptor = os.open(self.lock, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                owner = os.pread(descriptor, 200, 0).decode(errors="replace").strip() or "another process"
                raise ResultsError(
                    f"{self.folder}: {owner} is running this experiment; wait until it ends, or end it with Ctrl-C or "
                    "kill, then resume"
                ) from None
            os.ftruncate(descriptor, 0)
            now = datetime.now(UTC).isoformat(timespec="seconds")
            os.pwrite(descriptor, f"process {os.getpid()} on {platform.node()}, since {now},".encode(), 0)
            yield
        finally:
            os.close(descriptor)

    def read_plan(self) -> dict[str, Any]:
        """Return plan.json; raises ResultsError when it is damaged."""
        try:
            plan = json.loads(self.plan.read_text())
            if not isinstance(plan, dict) or not all(isinstance(cell["cell_id"], str) for cell in plan["cells"]):
                raise ValueError("expected an object with cells")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ResultsError(f"{self.plan}: not a readable plan ({error}); start a new run") from error
        return plan

    def read_config(self) -> DictConfig:
        """Return config.yaml; raises ResultsError when it is damaged."""
        try:
            config = OmegaConf.load(self.config)
        except (OSError, ValueError, OmegaConfBaseException, YAMLError) as error:
            raise ResultsError(f"{self.config}: not a readable config ({_line(error)}); start a new run") from error
        if not isinstance(config, DictConfig):
            raise ResultsError(f"{self.config}: not a readable config (expected keys and values); start a new run")
        return config

    def cell(self, cell_id: str) -> Path:
        """Return the folder of a finished cell."""
        return self.cells / cell_id

    def partial(self, cell_id: str) -> Path:
        """Return the folder of a cell that runs or has failed."""
        return self.cells / f"{cell_id}.partial"

    def is_done(self, cell_id: str) -> bool:
        """Whether the cell has been made whole; what it stored may be damaged since."""
        return self.cell(cell_id).exists()

    def sessions(self, cell_ids: Iterable[str]) -> dict[str, str]:
        """Return by cell the provenance file of the session that measured it, of the finished cells that can be read.

        Cells from before they named it have that of the first session.
        """
        found = {}
        for cell_id in cell_ids:
            with suppress(OSError, ValueError, AttributeError):  # damaged, and so of no session
                cell = json.loads((self.cell(cell_id) / "cell.json").read_text())
                found[cell_id] = str(cell.get("provenance", self.provenance.name))
        return found

    def read_session(self, name: str) -> dict[str, Any]:
        """Return the content of a provenance file; raises ResultsError when it is damaged."""
        path = self.folder / name
        try:
            content = json.loads(path.read_text())
            if not isinstance(content, dict) or not isinstance(content.get("host"), dict):
                raise ValueError("expected an object with a host")
        except (OSError, ValueError) as error:
            raise ResultsError(f"{path}: not a readable provenance ({_line(error)})") from error
        return content

    def new_provenance(self) -> Path:
        """Return where this session's provenance goes: a resumed run keeps that of each session."""
        n, path = 1, self.provenance
        # A record that is lost is not replaced: its cells would pass for measured here.
        used = set(self.sessions(cell.name for cell in self.cells.iterdir()).values())
        while path.exists() or path.name in used:
            n += 1
            path = self.folder / f"provenance-{n}.json"
        return path

    def set_store_aside(self) -> Path:
        """Keep the energy store, with its log, under a name of its own, so that a new one is begun; returns it."""
        n = 1
        while (aside := self.energy.with_name(f"{self.energy.name}.damaged-{n}")).exists():
            n += 1
        for suffix in ("-wal", "-shm"):
            log = self.energy.with_name(self.energy.name + suffix)
            if log.exists():
                log.rename(aside.with_name(aside.name + suffix))
        return self.energy.rename(aside)

    def set_aside(self, cell_id: str, why: Literal["failed", "damaged", "invalid"] = "failed") -> Path | None:
        """Keep what an earlier try of a cell left, under a name of its own, so that a new try starts clean.

        What failed is the cell's partial folder, what is damaged or invalid its finished one. Returns the new path;
        None where there was nothing.
        """
        left = self.partial(cell_id) if why == "failed" else self.cell(cell_id)
        if not left.exists():
            return None
        n = 1
        while (aside := self.cells / f"{cell_id}.{why}-{n}").exists():
            n += 1
        return left.rename(aside)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
