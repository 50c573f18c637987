"""Measures the cost of converting a dataset to shards, or shards to another form: seconds, CPU time, joules, bytes."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from energymon import EnergyError, Window
from harness.config.specs import EnergySpec, StoreSpec
from harness.datasets import DatasetHandle
from harness.errors import HarnessError
from harness.results.files import write_json
from harness.results.preparation import PREPARATION, Preparation, load_preparation
from harness.run.energy_agent import EnergyAgent
from harness.system.procfs import cpu_s

MIN_BYTES: Final = 32 * 2**20
"""Fewer bytes are converted within a few ticks of the sensors."""


class ConversionMeter:
    """Measures one conversion, if there is one, and remembers it beside the shards."""

    def __init__(self, energy: EnergySpec) -> None:
        # Idle power is part of what the conversion costs.
        self._energy = energy.model_copy(update={"idle_s": 0.0})
        self._seconds: float | None = None
        self._cpu_s = 0.0
        self._window: Window | None = None
        self._joules: float | None = None
        self._sources = ""

    @contextmanager
    def measure(self, nbytes: int) -> Iterator[None]:
        """Measure the block, which converts so many bytes. Joules of few bytes, or without sensors, stay unknown."""
        with ExitStack() as stack:
            edges = stack.enter_context(ExitStack())
            window = self._open_window(stack, edges) if nbytes >= MIN_BYTES else None
            before, began = cpu_s([os.getpid()]), time.monotonic()
            yield
            self._seconds, self._cpu_s = time.monotonic() - began, cpu_s([os.getpid()]) - before
            edges.close()
            if window is not None:
                self._read(window)

    def keep(
        self, handle: DatasetHandle, shards: Path, *, form: str = "", module: str = "", raw_bytes: int | None = None
    ) -> Preparation | None:
        """Return what the shards of a dataset cost, and store it beside them if they were made now.

        Shards that were converted to a form for a module are `raw_bytes`. None where they were made before that was
        measured. Raises OSError.
        """
        if self._seconds is None:
            return load_preparation(shards)
        found = Preparation(
            dataset=handle.name,
            samples=len(handle.samples),
            seconds=self._seconds,
            cpu_s=self._cpu_s,
            raw_bytes=int(handle.samples.sizes.sum()) if raw_bytes is None else raw_bytes,
            shard_bytes=sum(path.stat().st_size for path in shards.rglob("*") if path.is_file()),
            joules=self._joules,
            energy_source=self._sources,
            form=form,
            module=module,
        )
        write_json(shards / PREPARATION, found)
        return found

    def _open_window(self, stack: ExitStack, edges: ExitStack) -> Window | None:
        store = Path(stack.enter_context(TemporaryDirectory(prefix="joulefeed-conversion-")), "energy.sqlite")
        agent = EnergyAgent(store, self._energy, StoreSpec(), platform.node(), "conversion", lambda message: None)
        try:
            stack.enter_context(agent)
            return edges.enter_context(Window("conversion", agent=agent))
        except (HarnessError, EnergyError):
            return None

    def _read(self, window: Window) -> None:
        try:
            self._joules = window.joules
            self._sources = ";".join(f"{name}={one}" for name, every in sorted(window.sources.items()) for one in every)
        except EnergyError:
            self._joules = None
