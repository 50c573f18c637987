"""Meta's SPDL over files: a pipeline of threads that read, decode and transform samples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, Unpack

from loaders.arguments import check_choice
from loaders.base import Batch, Samples
from loaders.errors import LoaderConfigError, SampleTimeoutError
from loaders.image import ImageTransform
from loaders.options import LoaderKeywords, LoaderOptions, takes_options
from loaders.pipeline import Pipeline
from loaders.pipelines.callables import AnyTransform, as_pipeline
from loaders.shared.device import DeviceTransfer
from loaders.shared.file_loader import ThreadedLoader
from loaders.shared.processor import SampleProcessor
from loaders.spdl.epoch import OutputOrder, SpdlEpoch, Stages

if TYPE_CHECKING:
    from loaders.spdl.image import SpdlImages


Decode: TypeAlias = Literal["pil", "spdl"]
_COMPLETION_NOTE: Final = "batches are of the samples that were done first"


class SpdlLoader(ThreadedLoader):
    """Runs a pipeline in the threads of `spdl.pipeline`, one pipeline of SPDL's an epoch, as its DataLoader does.

    The threads last as long as the loader. `stats` has STAGE_queue_occupancy too, of every queue behind a stage of
    SPDL's, of the epochs that have ended: the share of the time in which something lay in it.
    """

    _name = "spdl-loader"

    @takes_options(LoaderOptions)
    def __init__(
        self,
        *,
        samples: Samples,
        transform: AnyTransform,
        num_threads: int = 4,
        read_concurrency: int | None = None,
        transform_concurrency: int | None = None,
        collate_concurrency: int = 1,
        output_order: OutputOrder = "completion",
        buffer_size: int = 3,
        decode: Decode = "pil",
        **keywords: Unpack[LoaderKeywords],
    ) -> None:
        """Check the arguments; raise LoaderConfigError.

        A thread whose sample is late cannot be ended: it is left to end with the process. With on_error "skip" batches
        are filled from the samples that come next.

        Args:
            samples: the files.
            transform: a pipeline, or a callable on the decoded sample.
            num_threads: threads that run all stages (default 4).
            read_concurrency: samples that are read at a time, in a stage of their own; None reads a sample in the stage
                that decodes it, which takes less processor time (default None).
            transform_concurrency: samples that are decoded and transformed at a time; None for `num_threads` (default
                None).
            collate_concurrency: batches that are collated at a time (default 1).
            output_order: of every stage's outputs: "completion", first done, first out, or "input", in the epoch's own
                order (default "completion").
            buffer_size: batches kept ready (default 3).
            decode: of images alone: "pil" as the other loaders, or "spdl", in which FFmpeg decodes, crops and resizes
                (default "pil").
        """
        options = LoaderOptions(**keywords)
        self._how = how = Stages(
            read_concurrency,
            num_threads if transform_concurrency is None else transform_concurrency,
            collate_concurrency,
            output_order,
            buffer_size,
        )
        super().__init__(
            samples,
            options,
            num_threads=num_threads,
            read_concurrency=(1 if how.read is None else how.read, 1),
            transform_concurrency=(how.transform, 1),
            collate_concurrency=(how.collate, 1),
            buffer_size=(buffer_size, 1),
        )
        check_choice("output_order", output_order, OutputOrder)
        transform = as_pipeline(transform)
        check_choice("decode", decode, Decode)
        if output_order == "completion":
            self.notes += (_COMPLETION_NOTE,)
        if decode == "spdl":
            transform = _decoded_by_spdl(transform)
            self.notes += transform.notes
        self._work = SampleProcessor(samples, transform, options.seed, workers=num_threads, processes=False)
        self._transfer = DeviceTransfer(self._device)
        self._running: SpdlEpoch | None = None

    def _batches(self, epoch: int) -> Iterator[Batch]:
        self._stop()
        running = self._running = SpdlEpoch(
            self._work,
            self._share.order(epoch),
            epoch=epoch,
            options=self._options,
            threads=self._own_threads(),
            how=self._how,
            transfer=self._transfer,
            stages=self._stages,
        )
        try:
            while True:
                made = running.next()
                self._skip(running.failed.take_new())
                if made is None:
                    return
                yield self._batch(made.ids, made.copied.wait(), made.work_s)
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
