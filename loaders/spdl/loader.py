"""Meta's SPDL over files: a pipeline of threads that read, decode and transform samples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from loaders.base import Batch, Samples
from loaders.errors import LoaderConfigError, SampleTimeoutError
from loaders.pipeline import Pipeline
from loaders.pipeline.callables import AnyTransform, as_pipeline
from loaders.pipeline.image import ImageTransform
from loaders.shared.device import DeviceTransfer
from loaders.shared.file_loader import ThreadedLoader
from loaders.shared.options import takes_options
from loaders.shared.processor import SampleProcessor
from loaders.spdl.epoch import SpdlEpoch, SpdlOptions

if TYPE_CHECKING:
    from loaders.spdl.image import SpdlImages


_COMPLETION_NOTE: Final = "batches are of the samples that were done first"


class SpdlLoader(ThreadedLoader):
    """Runs a pipeline in the threads of `spdl.pipeline`, one pipeline of SPDL's an epoch, as its DataLoader does.

    The threads last as long as the loader. `stats` has STAGE_queue_occupancy too, of every queue behind a stage of
    SPDL's, of the epochs that have ended: the share of the time in which something lay in it.
    """

    _name = "spdl-loader"

    @takes_options(SpdlOptions)
    def __init__(
        self,
        *,
        samples: Samples,
        transform: AnyTransform,
        **keywords: Any,
    ) -> None:
        """Check the arguments; raise LoaderConfigError.

        A thread whose sample is late cannot be ended: it is left to end with the process. With on_error "skip" batches
        are filled from the samples that come next.

        Args:
            samples: the files.
            transform: a pipeline, or a callable on the decoded sample.
        """
        self._own = options = SpdlOptions(**keywords)
        super().__init__(samples, options, num_threads=options.num_threads)
        transform = as_pipeline(transform)
        if options.output_order == "completion":
            self.notes += (_COMPLETION_NOTE,)
        if options.decode == "spdl":
            transform = _decoded_by_spdl(transform)
            self.notes += transform.notes
        self._work = SampleProcessor(samples, transform, options.seed, workers=options.num_threads, processes=False)
        self._transfer = DeviceTransfer(self._device)
        self._running: SpdlEpoch | None = None

    def _batches(self, epoch: int) -> Iterator[Batch]:
        self._stop()
        running = self._running = SpdlEpoch(
            self._work,
            self._share.order(epoch),
            epoch=epoch,
            options=self._own,
            threads=self._own_threads(),
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
        except SampleTimeoutError:
            self.close()
            raise
        finally:
            running.close()

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
