"""The folder of a run: the paths of its files, its lock, its ledger, and the files that are set aside in it."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import platform
import shlex
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

from omegaconf import DictConfig, OmegaConf

from harness.config.specs import Experiment, Tolerances
from harness.config.validation import quote_value
from harness.errors import ResultsError
from harness.results.cell_folder import MANIFEST, compute_checksum
from harness.results.cells import Cell, CellRecord
from harness.results.files import RUN, parse_value, read_json, refuse_damage
from harness.results.provenance import Provenance

NEW_RUN = "start a new run"
FORMAT: Final = 1
"""Version of a run's files. It rises with every change after which older files cannot be read."""
_RAW: Final = (
    *("config.yaml", "plan.json", "ledger.jsonl", "provenance*.json", "preparation.json"),
    *("samples*.parquet", "placement*.parquet", "cells"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """plan.json: the cells of a run, and what a resumed run must have in common with it."""

    format: int = FORMAT
    run_id: str = ""
    experiment: str = ""
    config_hash: str = ""
    dataset_hash: str = ""
    seed: int = 0
    cells: Sequence[Cell]


@dataclass(frozen=True, slots=True)
class RunManifest:
    """manifest.json of a run: by which rules it was judged, and from which files."""

    rules_edition: int
    files: Mapping[str, str]
    """SHA-256 of each file of the run, and of each cell's own manifest, by path in the folder."""


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One line of the ledger: what happened to a cell, and when."""

    t_utc: str
    cell_id: str
    """Empty for an event of the whole run."""
    event: str
    """started, done, failed, interrupted, damaged, resumed or note."""
    message: str = ""


class Ledger:
    """Appends one JSON line per event and syncs it to disk."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, event: str, cell_id: str = "", message: str = "") -> None:
        """Write one entry; it is on disk when this returns."""
        entry = LedgerEntry(datetime.now(UTC).isoformat(timespec="milliseconds"), cell_id, event, message)
        with self.path.open("ab+") as file:
            file.seek(0)
            # A killed run may have left a torn last line.
            file.truncate(file.read().rfind(b"\n") + 1)
            file.write((json.dumps(asdict(entry)) + "\n").encode())
            file.flush()
            os.fsync(file.fileno())

    def read_entries(self) -> list[LedgerEntry]:
        """Return the entries, oldest first. A torn last line, as a killed run leaves it, is left out.

        Raises ResultsError, which names any other line that cannot be read.
        """
        if not self.path.exists():
            return []
        lines = self.path.read_text(encoding="utf-8", errors="replace").splitlines()
        found: list[LedgerEntry] = []
        for number, line in enumerate(lines, start=1):
            try:
                found.append(parse_value(LedgerEntry, json.loads(line)))
            except ValueError as error:
                if number < len(lines):
                    why = " ".join(str(error).split())
                    message = f"{self.path}, line {number}: not a ledger entry ({why}); remove the line"
                    raise ResultsError(message) from error
        return found


def format_resume_command(folder: Path, results_dir: str) -> str:
    """Return the command that resumes the run of a folder in `results_dir`."""
    words = ["python", "-m", "harness", f"resume={folder.name}"]
    return shlex.join([*words, f"results_dir={quote_value(results_dir)}"] if results_dir != "results" else words)


def make_folder(results_dir: Path, name: str) -> Path:
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


def move_home(fresh: Path, home: Path) -> None:
    """Rename a run's folder to `home` on the same disk; an older version there is removed. Raises OSError."""
    old = fresh.with_suffix(".old")
    if home.exists():
        home.rename(old)
    fresh.rename(home)
    shutil.rmtree(old, ignore_errors=True)


class RunFolder:
    """The folder of one run. `results/README.md` says what each file contains."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / "config.yaml"
        self.plan = folder / "plan.json"
        self.ledger = folder / "ledger.jsonl"
        self.provenance = folder / "provenance.json"
        self.manifest = folder / MANIFEST
        self.checks = folder / "checks.json"
        self.claims = folder / "claims.json"
        self.page = folder / "report.html"
        self.epochs_csv = folder / "epochs.csv"
        self.epochs_parquet = folder / "epochs.parquet"
        self.metrics_csv = folder / "metrics.csv"
        self.metrics_parquet = folder / "metrics.parquet"
        self.refused_csv = folder / "refused.csv"
        self.refused_parquet = folder / "refused.parquet"
        self.ranks_csv = folder / "ranks.csv"
        self.ranks_parquet = folder / "ranks.parquet"
        self.energy = folder / "energy.sqlite"
        self.readers = folder / "readers.json"
        self.live = folder / "live.json"
        self.cells = folder / "cells"
        self.lock = folder / ".lock"

    @classmethod
    def create(cls, results_dir: Path, experiment: str) -> RunFolder:
        """Make a new folder named by UTC time with ms. `point_latest` follows once its plan is written."""
        run = cls(make_folder(results_dir, experiment))
        run.cells.mkdir()
        return run

    @classmethod
    def find(cls, name: str, results_dir: Path) -> RunFolder:
        """Return an existing run's folder by path, by name in `results_dir`, or 'latest'.

        Raises ResultsError, which names the newest runs, when there is no such run.
        """
        for candidate in (Path(name), results_dir / name):
            if (candidate / "plan.json").is_file():
                return cls(candidate.resolve())
        there = sorted(p.parent.name for p in results_dir.glob("*/plan.json") if not p.parent.is_symlink())
        hint = f"; the newest there: {', '.join(there[-3:])}" if there else ""
        raise ResultsError(f"{name}: no run with a plan.json there or in {results_dir}{hint}")

    def point_latest(self) -> str | None:
        """Point `latest` beside the folder at it. Returns why that is impossible, or None. Raises OSError."""
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
    def hold_lock(self) -> Iterator[None]:
        """Keep other runs out of the folder. The lock ends with this process, however it ends.

        Raises ResultsError, which names the process that has the lock.
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

    def without_path(self, text: object) -> str:
        """Return a message in which files of the folder are named as they are below it, wherever it is."""
        return str(text).replace(f"{self.folder}/", "")

    def read_plan(self) -> RunPlan:
        """Return plan.json. Raises ResultsError when it is damaged, or of another version of joulefeed."""
        found = read_json(self.plan, dict[str, object], NEW_RUN).get("format")
        if found != FORMAT:
            raise ResultsError(
                f"{self.plan}: is of another version of joulefeed (format {found}, expected {FORMAT}); use that "
                f"version, or {NEW_RUN}"
            )
        return read_json(self.plan, RunPlan, NEW_RUN)

    @property
    def is_whole(self) -> bool:
        """Whether every cell is done and the report is drawn."""
        cells = self.read_plan().cells
        return self.page.exists() and all((self.cell_folder(cell.cell_id) / "cell.json").exists() for cell in cells)

    def list_raw(self) -> list[Path]:
        """Return the files and folders that rows, checks and claims are made from; the others are made of them."""
        return sorted(path for pattern in _RAW for path in self.folder.glob(pattern))

    def compute_checksums(self) -> dict[str, str]:
        """Return the SHA-256 checksums of the raw files by path, of cells those of their manifests.

        The config and the ledger are left out: they change without the measurements.
        """
        files = [path for path in self.list_raw() if path.is_file() and path not in (self.config, self.ledger)]
        files += sorted(self.cells.glob(f"*/{MANIFEST}"))
        return {str(path.relative_to(self.folder)): compute_checksum(path) for path in files}

    def read_config(self) -> DictConfig:
        """Return config.yaml. Raises ResultsError (made of a ValueError) when it is damaged."""
        with refuse_damage(self.config, NEW_RUN):
            config = OmegaConf.load(self.config)
            if not isinstance(config, DictConfig):
                raise ValueError("expected keys and values")
        return config

    def read_experiment(self) -> Experiment:
        """Return the experiment of config.yaml. Raises ResultsError when it is damaged."""
        config = self.read_config()
        with refuse_damage(self.config, NEW_RUN):
            plain = parse_value(dict[str, Any], OmegaConf.to_container(config, resolve=True))
            return Experiment.from_config(plain, stored=True)

    def read_tolerances(self) -> Tolerances:
        """Return the tolerances of config.yaml. Raises ResultsError when it is damaged."""
        config = self.read_config()
        with refuse_damage(self.config, NEW_RUN):
            return Tolerances(**parse_value(dict[str, float], OmegaConf.to_container(config["checks"], resolve=True)))

    def read_session(self, name: str) -> Provenance:
        """Return the content of a provenance file. Raises ResultsError (made of a ValueError) when it is damaged."""
        content = read_json(self.folder / name, Provenance, RUN)
        with refuse_damage(self.folder / name, RUN):
            if not content.get("host"):
                raise ValueError("expected an object with a host")
        return content

    def read_sessions(self) -> dict[str, Provenance]:
        """Return every provenance file by name, in the order of sessions. Raises ResultsError when one is damaged."""
        later = sorted(self.folder.glob("provenance-*.json"), key=lambda path: (len(path.name), path.name))
        return {path.name: self.read_session(path.name) for path in (self.provenance, *later) if path.exists()}

    def cell_folder(self, cell_id: str) -> Path:
        """Return the folder of a finished cell."""
        return self.cells / cell_id

    def partial_folder(self, cell_id: str) -> Path:
        """Return the folder of a cell that runs or has failed."""
        return self.cells / f"{cell_id}.partial"

    def is_done(self, cell_id: str) -> bool:
        """Whether the cell was whole at some time. Its files may be damaged since."""
        return self.cell_folder(cell_id).exists()

    def find_sessions(self, cell_ids: Iterable[str]) -> dict[str, str]:
        """Return the name of the provenance file of each finished cell that can be read."""
        found = {}
        for cell_id in cell_ids:
            # A damaged cell belongs to no session.
            with suppress(ResultsError):
                found[cell_id] = read_json(self.cell_folder(cell_id) / "cell.json", CellRecord, RUN).provenance
        return found

    def name_provenance(self) -> Path:
        """Return the path of this session's provenance. A resumed run keeps the provenance of each session."""
        n, path = 1, self.provenance
        # A lost file is not replaced: its cells would pass for measured in this session.
        used = set(self.find_sessions(cell.name for cell in self.cells.iterdir()).values())
        while path.exists() or path.name in used:
            n += 1
            path = self.folder / f"provenance-{n}.json"
        return path

    def set_store_aside(self) -> Path:
        """Rename the energy store and its log, so that a new store can start. Returns the new path."""
        aside = _find_free_name(self.energy.with_name(f"{self.energy.name}.damaged"))
        for suffix in ("-wal", "-shm"):
            log = self.energy.with_name(self.energy.name + suffix)
            if log.exists():
                log.rename(aside.with_name(aside.name + suffix))
        return self.energy.rename(aside)

    def set_aside(self, cell_id: str, why: Literal["failed", "damaged", "invalid"] = "failed") -> Path | None:
        """Rename the folder of an earlier try of a cell, so that a new try can start. Returns the new path.

        A failed try is in the cell's partial folder, a damaged or invalid one in its finished folder. Returns None
        where there is no such folder.
        """
        left = self.partial_folder(cell_id) if why == "failed" else self.cell_folder(cell_id)
        return left.rename(_find_free_name(self.cells / f"{cell_id}.{why}")) if left.exists() else None


def _find_free_name(path: Path) -> Path:
    """Return the first of PATH-1, PATH-2, … that does not exist."""
    n = 1
    while (free := path.with_name(f"{path.name}-{n}")).exists():
        n += 1
    return free
