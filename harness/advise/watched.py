"""Runs a user's training script with torch's DataLoader watched: `python -m harness.advise.watched SPEC SCRIPT ...`.

SPEC is JSON: `out`, the file of the report; `place`, which of the script's DataLoaders is meant, by the line that makes
it, its dataset and the size of its batches, or null for the first one that is iterated; `arguments` that this one gets;
`batches` and `most_s` of the measurement. The script ends, without the rest of its training, when these are measured.
"""

from __future__ import annotations

import functools
import inspect
import json
import multiprocessing
import os
import runpy
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from weakref import WeakKeyDictionary

import psutil
import torch.utils.data

import energymon
from harness.system.procfs import cpu_s, family, own_cpu
from loaders.shared.compat import remove_memory

_SETTLE: Final = 2
"""Batches beyond those that are ready when an epoch begins, which are not counted."""
_LONGEST_SETTLE_S: Final = 20.0
_LEAST: Final = 3
"""Batches of a measurement."""


class Watch:
    """Counts the batches of one DataLoader from when its queues are empty."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self._spec = spec
        self._places: WeakKeyDictionary[torch.utils.data.DataLoader[Any], str] = WeakKeyDictionary()
        self._chosen: str | None = spec["place"]
        self._seen = 0
        self._waits_s: list[float] = []
        self._steps_s: list[float] = []
        self._window: energymon.Window | None = None
        self._began = (0.0, 0.0, 0.0)
        self._made_s = time.monotonic()

    def make(self, loader: torch.utils.data.DataLoader[Any], place: str, arguments: dict[str, Any]) -> None:
        """Take a DataLoader that is made at a place, and change its arguments where it is meant."""
        self._places[loader] = place
        if place == self._chosen:
            arguments.update(self._spec["arguments"])

    def batches(self, loader: torch.utils.data.DataLoader[Any], batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the batches of an epoch, and end the process when enough of them were measured."""
        place = self._places.get(loader, "")
        if self._chosen is None:
            self._chosen = place
        if place != self._chosen:
            yield from batches
            return
        gave = None
        while True:
            # Work that was launched on a GPU belongs to the step.
            if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
                torch.cuda.synchronize()
            asked = time.perf_counter()
            try:
                batch = next(batches)
            except StopIteration:
                return
            got = time.perf_counter()
            if self._window is not None and gave is not None:
                self._steps_s.append(asked - gave)
                self._waits_s.append(got - asked)
            self._seen += 1
            self._look(loader)
            gave = time.perf_counter()
            yield batch

    def _look(self, loader: torch.utils.data.DataLoader[Any]) -> None:
        ready = loader.num_workers * (loader.prefetch_factor or 0)
        now = time.perf_counter()
        if self._window is None:
            waited_s = time.monotonic() - self._made_s
            if self._seen > ready + _SETTLE or waited_s > _LONGEST_SETTLE_S:
                self._window = energymon.Window("probe")
                with suppress(energymon.EnergyError):
                    self._window.__enter__()
                self._began = now, cpu_s(family(os.getpid())), own_cpu().busy_s
            return
        is_over = len(self._steps_s) >= self._spec["batches"] or now > self._began[0] + self._spec["most_s"]
        if is_over and len(self._steps_s) >= _LEAST:
            self._report(loader, now)

    def _report(self, loader: torch.utils.data.DataLoader[Any], now: float) -> None:
        used_s = cpu_s(family(os.getpid())) - self._began[1]
        others_s = own_cpu().busy_s - self._began[2] - used_s
        assert self._window is not None
        joules, is_estimate = None, False
        with suppress(energymon.EnergyError):
            self._window.__exit__(None, None, None)
            joules, is_estimate = self._window.joules, self._window.estimated
        own = psutil.Process()
        rss = sum(process.memory_info().rss for process in (own, *own.children(recursive=True)))
        try:
            epoch = len(loader)
        except TypeError:  # of an iterable dataset
            epoch = len(self._steps_s)
        report = {
            "place": self._chosen,
            "arguments": {"num_workers": loader.num_workers, "prefetch_factor": loader.prefetch_factor},
            "epoch": epoch,
            "steps_s": self._steps_s,
            "waits_s": self._waits_s,
            "span_s": now - self._began[0],
            "cpu_s": used_s,
            "others_cpus": others_s / (now - self._began[0]),
            "rss_bytes": rss,
            "joules": joules,
            "is_estimate": is_estimate,
            "stages": {} if self._spec["place"] else _time_stages(loader),
        }
        Path(self._spec["out"]).write_text(json.dumps(report))
        sys.stdout.flush()
        with suppress(ValueError):  # not in the main thread, which is where torch raises for a killed worker
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        workers = multiprocessing.active_children()
        for worker in workers:
            worker.kill()
            worker.join(10)  # killed, it ends unless the kernel holds it
        remove_memory(workers)
        # The rest of the training is not wanted, nor what the script does at its end.
        os._exit(0)


def _time_stages(loader: torch.utils.data.DataLoader[Any]) -> dict[str, float]:
    """Return what a batch takes in this process, s: its samples by computing and by waiting, then the collation.

    Nothing where the dataset cannot be asked for a sample here.
    """
    with suppress(Exception):  # whatever the script's dataset raises
        places = next(iter(loader.batch_sampler))  # type: ignore[arg-type]
        began, began_cpu = time.perf_counter(), time.process_time()
        samples = [loader.dataset[place] for place in places]
        cpu, got = time.process_time() - began_cpu, time.perf_counter()
        loader.collate_fn(samples)
        computing = min(cpu, got - began)
        waiting = got - began - computing
        return {"augment": computing, "read": waiting, "collate": time.perf_counter() - got}
    return {}


def main() -> int:
    """Run the script; returns the exit status where it ends before enough batches were measured."""
    spec, script = json.loads(sys.argv[1]), sys.argv[2]
    watch = Watch(spec)
    loader: Any = torch.utils.data.DataLoader
    make, iterate = loader.__init__, loader.__iter__
    signature = inspect.signature(make)

    @functools.wraps(make)
    def watched_make(self: Any, *args: Any, **given: Any) -> None:
        bound = signature.bind(self, *args, **given)
        caller, dataset = sys._getframe(1), type(bound.arguments["dataset"]).__qualname__
        place = f"{caller.f_code.co_filename}:{caller.f_lineno} {dataset} {bound.arguments.get('batch_size')}"
        watch.make(self, place, bound.arguments)
        make(*bound.args, **bound.kwargs)

    def watched_iterate(self: Any) -> Iterator[Any]:
        return watch.batches(self, iterate(self))

    loader.__init__, loader.__iter__ = watched_make, watched_iterate
    sys.argv = sys.argv[2:]
    sys.path[0] = str(Path(script).resolve().parent)
    runpy.run_path(script, run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main())
