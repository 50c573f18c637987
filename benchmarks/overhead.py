"""What the harness itself costs: an instrumented epoch beside the bare loop, in turns in the order ABBA.

Judged is the mean of the pairs' ratios, by its interval. The ratio of the fastest quarters is shown beside it.
Neighbours on the host, which only ever add to a time, hardly move that, but what the agent does every two seconds may
fall out of it.
Prints a line per demand (asked, measured, verdict); exits 1 when one falls short.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

from bench import Line, judge_ratios, make_parser, run

from harness.cell.counters import CellCounters
from harness.cell.epoch import measured_epoch, save_batches
from harness.cell.events import EventLog, read_events
from harness.config.specs import EnergySpec, StoreSpec
from harness.datasets.imagenet_like import ImagenetLike
from harness.run.energy_agent import EnergyAgent
from harness.workloads.accelerator import make_step
from harness.workloads.classification import ResNet50
from loaders.pytorch import PyTorchLoader

IMAGES = 500
BATCH_SIZE = 32
RATIO_MOST = 1.01
SECONDS, QUICK_S = 600, 60
"""Pairs of a few seconds, whose ratios vary by 8 % here: some 200 of them know the mean to 1 %."""


def main() -> int:
    """Run the benchmark; 0 when every demand is met."""
    options = make_parser(__doc__, "a tenth of the pairs").parse_args()
    return run({"epoch": lambda: instrumented_epoch(seconds=QUICK_S if options.quick else SECONDS)}, options)


def instrumented_epoch(seconds: float) -> Iterator[Line]:
    """Alternate bare and instrumented epochs of one loader, in the order ABBA, and compare them."""
    with tempfile.TemporaryDirectory(prefix="joulefeed-overhead-") as folder:
        out = Path(folder)
        samples = ImagenetLike(name="overhead", samples=IMAGES).open(out, lambda *_: None).samples
        workload = ResNet50(name="resnet50", batch_size=BATCH_SIZE)
        step = make_step(workload, {"kind": "emulated", "model": "h100", "time_scale": 0.1}, 0)
        sink = (out / "progress").open("w")
        counters = CellCounters("lo", os.getpid())
        times: dict[str, list[float]] = {"bare": [], "instrumented": []}
        around: list[float] = []
        loader = PyTorchLoader(
            samples=samples, transform=workload.transform, batch_size=BATCH_SIZE, seed=0, device="cpu", num_workers=0
        )
        agent = EnergyAgent(
            out / "energy.sqlite", EnergySpec(), StoreSpec(), node="host", run_id="overhead", on_restart=print
        )
        with loader, agent, EventLog(out / "events.jsonl") as log:
            assert agent.pid is not None

            def bare() -> None:
                for batch in loader.epoch(1):
                    step(batch)

            def instrumented() -> None:
                records = measured_epoch(
                    loader, step, 1, log, counters, lambda done: print(done, file=sink, flush=True)
                )
                save_batches(records, 1, out / "batches.parquet")

            def timed(arm: str, epoch: Callable[[], None]) -> None:
                os.kill(agent.pid, signal.SIGSTOP if arm == "bare" else signal.SIGCONT)  # type: ignore[arg-type]
                time.sleep(0.1)  # an agent that was stopped first sees to the ticks that it missed
                started = time.perf_counter()
                epoch()
                whole_s = time.perf_counter() - started
                if arm == "bare":
                    times[arm].append(whole_s)
                    return
                # What a run would report as the epoch, and what the harness did before and after it.
                ended = [e for e in read_events(out / "events.jsonl") if e["event"] == "epoch_end"]
                epoch_s = ended[-1]["duration_ns"] / 1e9
                times[arm].append(epoch_s)
                around.append(whole_s - epoch_s)

            bare(), instrumented()
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline:
                for arm, epoch in (("bare", bare), ("instrumented", instrumented)):
                    timed(arm, epoch)
                for arm, epoch in (("instrumented", instrumented), ("bare", bare)):
                    timed(arm, epoch)
            os.kill(agent.pid, signal.SIGCONT)
        sink.close()
    bare_s, with_s = times["bare"], times["instrumented"]
    ratios = [one / other for one, other in zip(with_s, bare_s, strict=True)]
    what = "instrumented epoch over the bare loop's"
    yield judge_ratios(what, f"<= {RATIO_MOST}", ratios, digits=4, bare_s=bare_s, with_s=with_s)
    fastest = quiet(with_s) / quiet(bare_s)
    yield Line("  the fastest quarter of each", "", f"{fastest:.4f}", raw={"value": fastest})
    around_ms = 1e3 * median(around)
    what = "  before and after an epoch: events synced, batches saved, ms"
    yield Line(what, "", f"{around_ms:.1f}", raw={"seconds": around})


def quiet(times: list[float]) -> float:
    """Return the mean of the fastest quarter: neighbours on the host only ever add to a time."""
    fastest = sorted(times)[: max(1, len(times) // 4)]
    return sum(fastest) / len(fastest)


if __name__ == "__main__":
    sys.exit(main())
