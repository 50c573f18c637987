"""Meta's SPDL over files: a pipeline of threads, processes and coroutines that read, decode and transform samples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from loaders.base import Batch, Samples
from loaders.errors import LoaderConfigError, SampleTimeoutError, WorkerError
from loaders.pipeline import Pipeline
from loaders.pipeline.callables import AnyTransform, as_pipeline
from loaders.pipeline.image import ImageTransform
from loaders.shared.device import DeviceTransfer
from loaders.shared.file_loader import ThreadedLoader
from loaders.shared.options import takes_options
from loaders.shared.processor import SampleProcessor
from loaders.shared.threads import DaemonThreads, close_at_exit
from loaders.spdl.epoch import SpdlEpoch, SpdlOptions
from loaders.spdl.executors import CoroutineFiles, Executors, LoadProcesses

if TYPE_CHECKING:
    from loaders.spdl.image import SpdlImages


_COMPLETION_NOTE: Final = "batches are of the samples that were done first"


class SpdlLoader(ThreadedLoader):
    """Runs one pipeline of `spdl.pipeline` an epoch, as its DataLoader does.

    Threads and processes last as long as the loader. `stats` has STAGE_queue_occupancy too, of every queue behind a
    stage of SPDL's, of the epochs that have ended: the share of the time in which something lay in it.
    """

    _name = "spdl-loader"

    @takes_options(SpdlOptions)
    def __init__(self, *, samples: Samples, transform: AnyTransform, **keywords: Any) -> None:
        """Check the arguments; raise LoaderConfigError.

        A thread whose sample is late cannot be ended: it is left to end with the process. A process is killed. With
        on_error "skip" batches are filled from the samples that come next.

        Args:
            samples: the files.
            transform: a pipeline, or a callable on the decoded sample.
        """
        self._own = options = SpdlOptions(**keywords)
        loading = options.num_threads
        in_processes = options.executor == "process"
        # The first slots of the monitor are of the processes, or of the threads that load; those of readers come last.
        super().__init__(samples, options, num_threads=options.collate_concurrency if in_processes else loading)
        self._first_thread = loading if in_processes else 0
        first_reader = self._first_thread + self._num_threads
        self._readers = range(first_reader, first_reader + (options.read_concurrency or 0))
        transform = as_pipeline(transform)
        if options.output_order == "completion":
            self.notes += (_COMPLETION_NOTE,)
        if options.decode == "spdl":
            transform = _decoded_by_spdl(transform)
            self.notes += transform.notes
        self._work = SampleProcessor(
            samples, transform, options.seed, workers=self._readers.stop, processes=in_processes
        )
        if options.acquire == "coroutines":
            CoroutineFiles.check(transform)
        self._processes: LoadProcesses | None = None
        if in_processes:
            self._processes = LoadProcesses(samples, transform, options.seed, self._work.monitor, loading)
        self._reading: DaemonThreads | None = None
        self._transfer = DeviceTransfer(self._device)
        self._running: SpdlEpoch | None = None
        close_at_exit(self)

    def _batches(self, epoch: int) -> Iterator[Batch]:
        self._stop()
        running = self._running = SpdlEpoch(
            self._work,
            self._share.order(epoch),
            epoch=epoch,
            options=self._own,
            executors=self._executors(),
            start_transfer=lambda collated: self._transfer.start(self._batch(*collated)),
            stages=self._stages,
        )
        try:
            while True:
                made = running.next()
                self._skip(running.failed.take_new())
                if made is None:
                    return
                yield made.wait()
        except (SampleTimeoutError, WorkerError):
            self.close()
            raise
        finally:
            running.close()

    def _executors(self) -> Executors:
        """Return what runs the stages, started now if it is not there yet."""
        if self._processes is not None:
            self._processes.start()
        files: CoroutineFiles | None = None
        if self._own.acquire == "coroutines":
            files = CoroutineFiles(self._samples, self._work.monitor, self._readers)
        elif self._readers and self._reading is None:
            self._reading = DaemonThreads(len(self._readers), f"{self._name}-reader", first=self._readers.start)
        return Executors(self._own_threads(self._first_thread), self._reading, files, self._processes)

    def close(self) -> None:
        """End the pipeline, its threads and its processes; may be called twice."""
        super().close()
        if self._processes is not None:
            self._processes.close()
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.shutdown()

    def _stop(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            running.close()


def _decoded_by_spdl(transform: Pipeline) -> SpdlImages:
    if not isinstance(transform, ImageTransform):
        raise LoaderConfigError(
            f"decode=spdl: spdl.io decodes the images of an ImageTransform, not what {type(transform).__name__} reads; "
            "use decode=pil"
        )
    try:
        from loaders.spdl.image import SpdlImages
    except (ImportError, RuntimeError) as error:
        raise LoaderConfigError(
            f"decode=spdl: spdl.io cannot be loaded ({error}); it needs FFmpeg's shared libraries, or use decode=pil"
        ) from error
    return SpdlImages(transform)
