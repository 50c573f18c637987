"""What the loaders have in common whose samples are loaded by threads of theirs."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

from loaders.base import LoaderStats, Samples
from loaders.shared.file_loader import FileLoader
from loaders.shared.stage_table import StageTable
from loaders.shared.threads import DaemonThreads, close_at_exit

__all__ = ["ThreadedLoader"]


class ThreadedLoader(FileLoader):
    """Has threads, from the first epoch that needs them to its end, and times of every stage that they run."""

    _name: ClassVar[str]
    """What the threads are named after."""

    def __init__(self, samples: Samples, device: str, *, num_threads: int, **arguments: Any) -> None:
        """Check the arguments, which are `FileLoader`'s; raise LoaderConfigError."""
        super().__init__(samples, device, num_threads=(num_threads, 1), **arguments)
        self._num_threads = num_threads
        self._stages = StageTable()
        self._threads: DaemonThreads | None = None
        close_at_exit(self)

    def stats(self) -> LoaderStats:
        """Return the counts so far; `wait_s` is the time spent waiting for the engine.

        Of every stage that threads of the loader run: STAGE_count, STAGE_mean_s, STAGE_p99_s (of the last 10 000).
        """
        self._stats.details |= self._stages.figures()
        return self._stats

    def close(self) -> None:
        """End the pipeline and its threads; may be called twice."""
        self._closed = True
        self._stop()
        if self._threads is not None:
            self._threads.shutdown()
            self._threads = None

    @abstractmethod
    def _stop(self) -> None:
        """End the epoch that is running, if one is."""

    def _own_threads(self) -> DaemonThreads:
        if self._threads is None:
            self._threads = DaemonThreads(self._num_threads, self._name)
        return self._threads
