"""The harness under a saboteur: parts are killed and stopped, files cut short, a disk filled, two run at once.

Every scenario runs a small experiment in a folder of its own and is judged by four demands: an exit status of the table
in results/README.md that fits, no traceback, no valid row of a cell that was disturbed or whose samples are not all
there, and a run that a resume completes. Prints a line a scenario; exits 1 when one falls short. Filling needs root.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pandas as pd
import psutil
import pyarrow.parquet as pq
from bench import Line, make_parser, run

SAMPLES = 24
LIMIT_S = 300
SMALL = (
    *("+experiment=smoke", f"dataset.samples={SAMPLES}", "repeats=2", "warmup_samples=8", "figures=[]"),
    *("workloads.resnet50.batch_size=8", "~loaders.dali", "~loaders.streaming", "loaders.pytorch.num_workers=1"),
    *("accelerator.kind=emulated", "accelerator.time_scale=60", "testbed.caches=tree"),
    *("checks.others_cpu_pct=100", "checks.others_cpus=1000", "checks.steal_pct=100"),
)
"""Two cells of an epoch of 1.6 s each; what else the machine does is none of the matter."""


@dataclass
class Stage:
    """Where a scenario plays, and what it found."""

    results: Path
    cache: Path
    random: random.Random
    faults: list[str] = field(default_factory=list)

    def command(self, *overrides: str, module: str = "harness") -> list[str]:
        """Return the command of the experiment."""
        where = (f"results_dir={self.results}", f"cache_dir={self.cache}")
        return [sys.executable, "-m", module, *SMALL, *where, *overrides]

    def start(self, *overrides: str) -> subprocess.Popen[str]:
        """Start the experiment."""
        return subprocess.Popen(
            self.command(*overrides), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        )

    def ended(self, process: subprocess.Popen[str], *statuses: int) -> str:
        """Wait for a command and judge its status and what it said, which is returned."""
        try:
            said, _ = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            said, _ = process.communicate()
            self.faults.append(f"no end within {LIMIT_S} s")
        if process.returncode not in statuses:
            last = said.strip().splitlines()[-1:] or ["nothing"]
            self.faults.append(f"status {process.returncode}, expected {' or '.join(map(str, statuses))}: {last[0]}")
        if "Traceback" in said:
            self.faults.append(f"a traceback: {said.strip().splitlines()[-1]}")
        return said

    def run(self, *overrides: str, statuses: tuple[int, ...] = (0,)) -> str:
        """Run the experiment to its end."""
        return self.ended(self.start(*overrides), *statuses)

    def tool(self, command: str, *statuses: int) -> str:
        """Run `harness.validate --write` or `harness.report` on the folder."""
        argv = [sys.executable, "-m", *command.split(), str(self.folder)]
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return self.ended(process, *statuses)

    def expect(self, fact: object, otherwise: str) -> None:
        """Note a fault unless something holds."""
        if not fact:
            self.faults.append(otherwise)

    @property
    def folder(self) -> Path:
        """The last run's folder; one that was killed before it was called `latest` stays beside it."""
        latest = self.results / "latest"
        return latest.resolve() if latest.is_symlink() else max(self.results.glob("2*"))

    def in_epoch(self, process: subprocess.Popen[str]) -> Path | None:
        """Wait for an epoch of a cell to begin; returns the cell's folder, None when the run has ended."""
        deadline = time.monotonic() + LIMIT_S
        while process.poll() is None and time.monotonic() < deadline:
            for events in self.results.glob("2*/cells/*.partial/events.jsonl"):
                try:
                    if "epoch_start" in events.read_text():
                        return events.parent
                except FileNotFoundError:
                    continue
            time.sleep(0.02)
        return None

    def completed(self, *overrides: str) -> None:
        """Resume until all is done: every row is there once, valid, and of every sample."""
        self.run("resume=latest", *overrides)
        self.whole(2)

    def whole(self, rows: int) -> None:
        """Judge every valid row by its batches, and how many there are."""
        if not (self.folder / "epochs.csv").exists():
            self.faults.append("no epochs.csv")
            return
        table = pd.read_csv(self.folder / "epochs.csv")
        valid = table[table["valid"] == "valid"]
        self.expect(len(valid) == rows, f"{len(valid)} valid rows, expected {rows}: {list(table['valid'])}")
        for row in valid.itertuples():
            path = self.folder / "cells" / str(row.cell_id) / "batches.parquet"
            ids = sorted(pq.read_table(path)["ids"].combine_chunks().flatten().to_pylist())
            self.expect(ids == list(range(SAMPLES)), f"{row.cell_id} is valid without every sample once")


Scenario = Callable[[Stage], None]


def children(process: subprocess.Popen[str], *words: str) -> list[psutil.Process]:
    """Return the processes below a run with all of these words in their command."""
    try:
        below = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    found = []
    for child in below:
        try:
            if all(word in child.cmdline() for word in words):
                found.append(child)
        except psutil.Error:
            continue
    return found


def killed(stage: Stage) -> None:
    """Kill the harness at any moment of its life, three times; then finish."""
    for number in range(3):
        process = stage.start(*(["resume=latest"] if number and (stage.results / "latest").exists() else []))
        time.sleep(stage.random.uniform(0.5, 12.0))
        process.kill()
        stage.ended(process, -9, 0)
    if not (stage.results / "latest").exists():
        stage.run()
        return
    stage.completed()


def signalled(stage: Stage) -> None:
    """Send SIGINT, SIGTERM and SIGHUP at any moment, each a second time after it; then finish."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        process = stage.start(*(["resume=latest"] if (stage.results / "latest").exists() else []))
        time.sleep(stage.random.uniform(1.0, 12.0))
        for _ in range(2):
            if process.poll() is None:
                process.send_signal(number)
            time.sleep(0.2)
        stage.ended(process, 128 + number, -number, 0)
    if (stage.results / "latest").exists():
        stage.completed()


def cell_of(process: subprocess.Popen[str]) -> psutil.Process:
    """Return the cell of an epoch, which is forked from another process of its command."""
    found = children(process, "harness.cell")
    return next(one for one in found if one.parent() in found)


def cell_killed(stage: Stage) -> None:
    """Kill the cell of an epoch: that cell fails, the other one is measured."""
    process = stage.start()
    if stage.in_epoch(process):
        cell_of(process).kill()
    said = stage.ended(process, 3)
    stage.expect("was killed by SIGKILL" in said, "the killed cell is not named")
    stage.whole(1)
    stage.completed()


def worker_of(process: subprocess.Popen[str]) -> psutil.Process | None:
    """Wait for the loader's worker, which an epoch begins before; None when the run has ended."""
    deadline = time.monotonic() + LIMIT_S
    while process.poll() is None and time.monotonic() < deadline:
        found = children(process, "harness.cell")
        for worker in found:
            if all(one in found for one in worker.parents()[:2]):
                return worker
        time.sleep(0.01)
    return None


def worker_killed(stage: Stage) -> None:
    """Kill the loader's worker in an epoch."""
    process = stage.start()
    if stage.in_epoch(process) and (worker := worker_of(process)):
        worker.kill()
    stage.ended(process, 3)
    stage.whole(1)
    stage.completed()


def agent_killed(stage: Stage) -> None:
    """Kill the energy agent in an epoch: it is started again, and the row says so."""
    process = stage.start()
    if stage.in_epoch(process):
        for agent in children(process, "energymon"):
            agent.kill()
    stage.ended(process, 0, 6)
    checks = json.loads((stage.folder / "checks.json").read_text())
    deaths = [check for check in checks if check["rule"] == "energy_agent" and "died" in check["actual"]]
    stage.expect(deaths, "no row has the agent's death")


def agent_stopped(stage: Stage) -> None:
    """Stop the energy agent for a second of an epoch: that row has missed ticks."""
    process = stage.start()
    if stage.in_epoch(process):
        agents = children(process, "energymon")
        for agent in agents:
            agent.suspend()
        time.sleep(1.0)
        for agent in agents:
            agent.resume()
    stage.ended(process, 6)
    stage.whole(1)
    stage.completed("resume_invalid=true")


def cell_stopped(stage: Stage) -> None:
    """Stop the cell for good: it fails after cell_stall_min, with what it waits for."""
    process = stage.start("cell_stall_min=0.5")
    if stage.in_epoch(process):
        cell_of(process).suspend()
    said = stage.ended(process, 3)
    stage.expect(re.search(r"no progress for 0\.5 min .* is stopped", said), "the stopped cell is not named")
    stage.whole(1)
    stage.completed()


def worker_stopped(stage: Stage) -> None:
    """Stop the loader's worker for good: the cell fails with the place where it waits."""
    process = stage.start("cell_stall_min=0.5")
    if stage.in_epoch(process) and (worker := worker_of(process)):
        worker.suspend()
    said = stage.ended(process, 3)
    stage.expect("waiting for" in said, "the place is not named")
    stage.whole(1)
    stage.completed()


def damaged_cells(stage: Stage) -> None:
    """Damage each file of a cell in turn: the other cell is judged; the last damage is mended by a resume."""
    stage.run()
    cell = next(iter(sorted((stage.folder / "cells").iterdir())))
    kept = stage.results.with_name("kept_cell")
    shutil.copytree(cell, kept)
    for path in sorted(kept.iterdir()):
        if path.suffix in (".json", ".parquet"):
            damage(cell / path.name, stage.random)
            stage.tool("harness.validate --write", 3)
            stage.tool("harness.report", 0)
            stage.whole(1)
            shutil.copy2(path, cell / path.name)
    damage(cell / "batches.parquet", stage.random)
    stage.expect("damaged cell" in stage.run("resume=latest"), "the damage is not named")
    stage.whole(2)


def damaged_folder(stage: Stage) -> None:
    """Damage each of the files that a resume reads: named in one line, or mended by it."""
    stage.run()
    kept = stage.results.with_name("kept_folder")
    shutil.copytree(stage.folder, kept, symlinks=True)
    for name in ("plan.json", "config.yaml", "ledger.jsonl", "provenance.json", "samples.parquet", "epochs.csv"):
        damage(stage.folder / name, stage.random)
        stage.tool("harness.validate --write", 0, 2, 6)
        stage.run("resume=latest", statuses=(0, 2))
        stage.tool("harness.report", 0, 2, 7)
        shutil.copy2(kept / name, stage.folder / name)
    shutil.rmtree(next((stage.folder / "cells").iterdir()))
    damage(stage.folder / "energy.sqlite", stage.random)
    stage.run("resume=latest", statuses=(0, 2, 4))
    shutil.copy2(kept / "energy.sqlite", stage.folder / "energy.sqlite")
    stage.run("resume=latest")
    stage.whole(2)


def damage(path: Path, chance: random.Random) -> None:
    """Cut a file short, empty it, overwrite it with bytes by chance, or remove it."""
    size = path.stat().st_size if path.exists() else 0
    match chance.choice(("cut", "empty", "garbage", "remove")):
        case "cut":
            os.truncate(path, chance.randrange(max(1, size - 8)))
        case "empty":
            path.write_bytes(b"")
        case "garbage":
            path.write_bytes(chance.randbytes(max(16, size)))
        case _:
            path.unlink()


def two_at_once(stage: Stage) -> None:
    """Resume a run that is alive: refused with its process, and its rows are kept."""
    process = stage.start("energy.estimate=off")
    stage.in_epoch(process)
    said = stage.run("energy.estimate=off", "resume=latest", statuses=(2,))
    stage.expect(f"process {process.pid} on" in said, "the living run is not named")
    stage.ended(process, 0, 6)
    stage.whole(2)


def latest_taken(stage: Stage) -> None:
    """Have a real folder named latest: it is left alone, and the run goes on."""
    (stage.results / "latest").mkdir(parents=True)
    said = stage.run()
    stage.expect("is no symbolic link" in said, "the folder in the place of the link is not named")
    stage.whole(2)


def tiny_disk(stage: Stage) -> None:
    """Give the results 40 kB: refused with the room that there is."""
    with disk(stage.results, "40k"):
        stage.expect("disk is full" in stage.run(statuses=(5,)), "the full disk is not named")


def full_disk(stage: Stage) -> None:
    """Fill the disk of the results in an epoch; with room again, finish."""
    with disk(stage.results, "14m"):
        process = stage.start()
        stage.in_epoch(process)
        filler = stage.results / "filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 16))
        stage.expect("full" in stage.ended(process, 5), "the full disk is not named")
        filler.unlink(missing_ok=True)
        stage.completed()


@contextlib.contextmanager
def disk(folder: Path, size: str) -> Iterator[None]:
    """Put a disk of its own in the place of a folder."""
    folder.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


SCENARIOS: dict[str, Scenario] = {
    one.__name__: one
    for one in (
        *(killed, signalled, cell_killed, worker_killed, agent_killed, agent_stopped, cell_stopped, worker_stopped),
        *(damaged_cells, damaged_folder, two_at_once, latest_taken, tiny_disk, full_disk),
    )
}
QUICK = ("cell_killed", "two_at_once", "latest_taken", "tiny_disk")


def main() -> int:
    """Run the scenarios; 0 when none falls short."""
    parser = make_parser(__doc__, "four scenarios, in two minutes")
    parser.add_argument("--only", nargs="*", choices=SCENARIOS, help="these scenarios (default: all)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments and the damage (default: 0)")
    given = parser.parse_args()
    if given.quick and not given.only:
        given.only = list(QUICK)
    with tempfile.TemporaryDirectory(prefix="joulefeed-sabotage-") as folder:
        parts = {name: partial(play, name, Path(folder), given.seed) for name in SCENARIOS}
        return run(parts, given, widths=(16, 16, 40))


def play(name: str, folder: Path, seed: int) -> Iterator[Line]:
    """Play a scenario on a stage of its own."""
    if "disk" in name and os.geteuid() != 0:
        yield Line(name, "", "not run: mounting a disk needs root")
        return
    began = time.monotonic()
    stage = Stage(folder / name, folder / "cache", random.Random(f"{seed} {name}"))
    SCENARIOS[name](stage)
    seconds, found = time.monotonic() - began, "; ".join(stage.faults) or "as it should be"
    raw = {"faults": stage.faults, "seconds": seconds}
    yield Line(name, "as it should be", f"{found} ({seconds:.0f} s)", not stage.faults, raw)


if __name__ == "__main__":
    sys.exit(main())
