"""Whole runs of experiments, as a user starts them: wan30ms with its time, memory and disk, its emulated steps,
minato_seeds, and gpu_smoke where there is an NVIDIA GPU.

What a run prints is kept, for the tables of the README. Prints a line per demand (asked, measured, verdict); exits 1
when one falls short. `--quick` leaves out the longer runs.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import median

import pandas as pd
import psutil
import torch
from bench import REPO, Line, at_most, judge_ratios, make_parser, run, spread
from rich.console import Console

from harness.errors import TestbedError
from harness.report import Report, print_report, read_report
from harness.results.provenance import list_facts

STREAMING_MOST = {"the paper's bound": 1.05, "the goal": 1.02}
"""An epoch at 30 ms over one at 0.1 ms: the EMLIO paper has less than 5 % (section 5.1)."""
TIMEOUT_S = 1800
MEMORY_EVERY_S = 10.0
"""To read the memory of a dozen processes takes half a second of a CPU, which counts as other programs' in the rows."""
COLUMNS = 100
"""Of the terminal that a run prints to."""
NO_SLOW = ("~loaders.pytorch_emlio", "~loaders.dali_emlio")
STEPS = ("loaders.pytorch_unordered.num_workers=12", "repeats=1", "epochs=3", "dataset.samples=1050", "judged=false")
PICTURE = REPO / "docs" / "wan30ms.png"


def main() -> int:
    """Measure and print; return the exit status."""
    parts = {"wan30ms": partial(wan30ms, False), "steps": steps, "seeds": seeds, "gpu": gpu}
    options = make_parser(__doc__, "wan30ms once; no minato_seeds", parts).parse_args()
    if options.quick:
        parts["wan30ms"] = partial(wan30ms, True)
        options.only = options.only or ["wan30ms"]
    if not torch.cuda.is_available():
        options.only = options.only or ["wan30ms", "steps", "seeds"]
    return run(parts, options)


def wan30ms(quick: bool) -> Iterator[Line]:
    """Run wan30ms twice in a folder of its own and watch memory, disk and time; streaming has repeats of its own."""
    with tempfile.TemporaryDirectory(prefix="joulefeed-wan30ms-") as name:
        folder = Path(name)
        first_s, first_peak = watched(folder, "wan30ms")
        yield at_most("wan30ms: first run, dataset made, s", 360, first_s, f"{first_s:.0f}")
        second_s, peak = (first_s, first_peak) if quick else watched(folder, "wan30ms")
        if not quick:
            yield at_most("wan30ms: second run, s", 300, second_s, f"{second_s:.0f}")
        rows = read_rows(folder)
        report, picture = read_latest(folder), folder / "results/latest/figures/emlio_fig5.png"
        raw = {"text": printed(report), "epochs": rows.to_dict("records"), **list_evidence(report)}
        yield Line("wan30ms: what it prints", "", "", raw=raw)
        valid = int((rows["valid"] == "valid").sum())
        yield Line("wan30ms: valid rows", "all", f"{valid} of {len(rows)}", valid == len(rows))
        disk = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
        yield at_most("wan30ms: disk of dataset, shards and runs, GB", 2, disk / 1e9, f"{disk / 1e9:.2f}")
        most = max(first_peak, peak) / 2**30
        yield at_most("wan30ms: peak memory of all its processes (PSS), GiB", 4, most, f"{most:.2f}")
        PICTURE.write_bytes(picture.read_bytes())
        if not quick:
            # Its demand is tight.
            watched(folder, "wan30ms", "~loaders.pytorch", "~loaders.dali", "~loaders.fixed", *NO_SLOW, "repeats=8")
        yield from slowdowns(rows, rows if quick else read_rows(folder))


def slowdowns(rows: pd.DataFrame, streaming: pd.DataFrame) -> Iterator[Line]:
    """Compare each loader's epochs at 30 ms with those at 0.1 ms of the same repeat; streaming's are judged."""
    both = pd.concat([rows[rows["loader"] != "streaming"], streaming[streaming["loader"] == "streaming"]])
    settled = both[both["epoch"] > both.groupby("cell_id")["epoch"].transform("min")]
    for loader, epochs in settled.groupby("loader"):
        medians = epochs.groupby(["rtt_ms", "repeat"])["duration_s"].median()
        if not {0.1, 30.0} <= set(medians.index.get_level_values(0)):  # the fixed batch, and rows as in the paper
            continue
        pairs = pd.DataFrame({"far": medians[30.0], "near": medians[0.1]}).dropna()
        far_s, near_s = list(pairs["far"]), list(pairs["near"])
        ratios = [far / near for far, near in zip(far_s, near_s, strict=True)]
        words = f"{spread(far_s)} and {spread(near_s)} s"
        what = f"{loader}: settled epoch at 30 ms over 0.1 ms"
        for name, most in STREAMING_MOST.items() if loader == "streaming" else [("", None)]:
            asked = "" if most is None else f"<= {most}"
            yield judge_ratios(f"{what}{name and ', '}{name}", asked, ratios, words, far_s=far_s, near_s=near_s)


def steps() -> Iterator[Line]:
    """Compare how long emulated steps took with their nominal time, by loader and distance, in settled epochs."""
    with tempfile.TemporaryDirectory(prefix="joulefeed-steps-") as name:
        watched(Path(name), "wan30ms", "+loader@loaders.pytorch_unordered=pytorch_unordered", *NO_SLOW, *STEPS)
        rows = read_rows(Path(name))
        cells = Path(name) / "results" / "latest" / "cells"
        for (loader, rtt_ms), epochs in rows[rows["epoch"] > 1].groupby(["loader", "rtt_ms"]):
            (cell_id, *_) = epochs["cell_id"]
            accelerator = json.loads((cells / cell_id / "cell.json").read_text())["accelerator"]
            nominal_s = epochs["samples"] * accelerator["seconds_per_sample"]
            stretch = list(100 * ((epochs["duration_s"] - epochs["stall_s"]) / nominal_s - 1))
            raw = {name: list(epochs[name]) for name in ("duration_s", "stall_s")}
            what = f"{loader}, {rtt_ms:g} ms: epoch without stall over nominal steps, less 1, %"
            more = f"waits {median(epochs['stall_s']):.2f} of {median(epochs['duration_s']):.2f} s"
            yield at_most(what, 1, median(stretch), spread(stretch, 2, more), nominal_s=list(nominal_s), **raw)


def seeds() -> Iterator[Line]:
    """Run minato_seeds: whether a model learns the same through two loaders, over five seeds."""
    with tempfile.TemporaryDirectory(prefix="joulefeed-seeds-") as name:
        seconds, _ = watched(Path(name), "minato_seeds")
        report = read_latest(Path(name))
        yield Line("minato_seeds, s", "", f"{seconds:.0f}", raw={"text": printed(report), **list_evidence(report)})


def gpu() -> Iterator[Line]:
    """Run gpu_smoke: every loader that ends on a GPU, with real steps and the board's own energy counter."""
    with tempfile.TemporaryDirectory(prefix="joulefeed-gpu-") as name:
        watched(Path(name), "gpu_smoke")
        yield from judge_gpu(Path(name) / "results" / "latest")


def judge_gpu(folder: Path) -> Iterator[Line]:
    """Return what a run of gpu_smoke shows: its rows, and what each loader's settled epochs took of the board."""
    report, rows = read_report(folder), pd.read_csv(folder / "epochs.csv")
    raw = {"text": printed(report), "epochs": rows.to_dict("records"), **list_evidence(report)}
    yield Line("gpu_smoke: what it prints", "", "", raw=raw)
    valid = int((rows["valid"] == "valid").sum())
    yield Line("gpu_smoke: valid rows", "all", f"{valid} of {len(rows)}", valid == len(rows))
    for loader, epochs in rows[rows["epoch"] > 1].groupby("loader"):
        joules, stalled, seconds = (median(epochs[name]) for name in ("gpu_j", "stalled_j", "duration_s"))
        words = f"{joules:.1f} in {seconds:.2f} s, {stalled:.1f} of them while the step waited"
        yield Line(f"gpu_smoke: {loader}, the board's joules, settled epochs", "", words)


def list_evidence(report: Report) -> dict[str, object]:
    """Return what the rows of a run rest on: checks by rule and verdict, those that did not pass, claims, machine.

    The record of the machine is without its name, its paths and its environment variables.
    """
    checks = report.results.checks
    rules = {rule: Counter(one.verdict for one in checks if one.rule == rule) for rule in {one.rule for one in checks}}
    kept = ("host", "packages", "source", "installed", "testbed", "energy")
    sessions = [
        list_facts({name: fields for name, fields in record.items() if name in kept})
        for record in report.results.sessions.values()
    ]
    return {
        "checks": dict(sorted(rules.items())),
        "not_passed": [asdict(one) for one in checks if one.verdict not in ("pass", "not applicable")],
        "claims": [asdict(claim) for claim in report.claims],
        "provenance": [{key: fact for key, fact in facts.items() if key != "host.hostname"} for facts in sessions],
    }


def read_latest(folder: Path) -> Report:
    """Return the latest run, judged."""
    return read_report(folder / "results" / "latest")


def printed(report: Report) -> str:
    """Return what a run prints at its end."""
    console = Console(file=io.StringIO(), width=COLUMNS)
    print_report(report, console)
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines()).strip("\n")


def read_rows(folder: Path) -> pd.DataFrame:
    """Return the epochs of the latest run."""
    return pd.read_csv(folder / "results" / "latest" / "epochs.csv")


def watched(folder: Path, experiment: str, *overrides: str) -> tuple[float, int]:
    """Run an experiment; return its seconds and the peak of the memory that its processes had (PSS, bytes).

    Raises TestbedError when it fails or takes too long.
    """
    argv = [sys.executable, "-m", "harness", f"+experiment={experiment}", f"results_dir={folder}/results"]
    process = subprocess.Popen([*argv, f"cache_dir={folder}/cache", *overrides], cwd=REPO, stdout=subprocess.DEVNULL)
    started, peak = time.monotonic(), 0
    try:
        while process.poll() is None and time.monotonic() < started + TIMEOUT_S:
            peak = max(peak, pss_bytes(process.pid))
            with suppress(subprocess.TimeoutExpired):
                process.wait(MEMORY_EVERY_S)
        seconds = time.monotonic() - started
        # 6: rows that a busy machine makes invalid are counted, and shown.
        if process.poll() not in (0, 6):
            raise TestbedError(f"{experiment}: ended with {process.poll()} after {seconds:.0f} s: run it by itself")
        return seconds, peak
    finally:
        process.terminate()
        process.wait(60)


def pss_bytes(pid: int) -> int:
    """Return the memory that a process and its descendants have; each shared page counts once."""
    total = 0
    with suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        for process in [root, *root.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                total += process.memory_full_info().pss
    return total


if __name__ == "__main__":
    sys.exit(main())
