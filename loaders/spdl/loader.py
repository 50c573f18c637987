"""Meta's SPDL over files: a pipeline of threads that read, decode and transform samples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from loaders.base import Batch, Samples
from loaders.errors import LoaderConfigError, SampleTimeoutError
from loaders.image import ImageTransform
from loaders.options import OnError, Remainder
from loaders.pipeline import Pipeline
from loaders.pipelines.callables import AnyTransform, as_pipeline
from loaders.shared.device import DeviceTransfer
from loaders.shared.files import encoded_bytes
from loaders.shared.processor import SampleProcessor
from loaders.shared.threaded_loader import ThreadedLoader
from loaders.spdl.epoch import Made, SpdlEpoch

if TYPE_CHECKING:
    from loaders.spdl.image import SpdlImages

__all__ = ["Decode", "SpdlLoader"]

Decode: TypeAlias = Literal["pil", "spdl"]


class SpdlLoader(ThreadedLoader):
    """Runs a pipeline in the threads of `spdl.pipeline`, one pipeline of SPDL's an epoch, as its DataLoader does.

    The threads last as long as the loader. `stats` has STAGE_queue_occupancy too, of every queue behind a stage of
    SPDL's, of the epochs that have ended: the share of the time in which something lay in it.
    """

    _name = "spdl-loader"

    def __init__(
        self,
        *,
        samples: Samples,
        transform: AnyTransform,
        batch_size: int,
        seed: int,
        device: str = "cpu",
        num_threads: int = 4,
        buffer_size: int = 3,
        decode: Decode = "pil",
        rank: int | None = None,
        world_size: int | None = None,
        remainder: Remainder | None = None,
        sample_timeout_s: float | None = None,
        on_error: OnError = "raise",
    ) -> None:
        """Check the arguments; raise LoaderConfigError.

        `num_threads` load samples and collate; `buffer_size` batches are held ready. `decode` is of images alone: "pil"
        as the other loaders, or "spdl" for `spdl.io`, which has FFmpeg decode, crop and resize. `rank`, `world_size`
        and `remainder` share the samples among ranks, see `Share`. A sample that is not back after `sample_timeout_s`
        seconds ends the epoch and the loader; its thread cannot be ended and is left to end with the process. With
        on_error "skip" a sample that fails is left out and told in `stats`; batches are filled from what comes next.
        """
        transform = as_pipeline(transform)
        super().__init__(
            samples,
            device,
            batch_size=batch_size,
            seed=seed,
            rank=rank,
            world_size=world_size,
            remainder=remainder,
            sample_timeout_s=sample_timeout_s,
            on_error=on_error,
            num_threads=num_threads,
            buffer_size=(buffer_size, 1),
        )
        if decode not in get_args(Decode):
            raise LoaderConfigError(f"decode={decode!r}: expected one of {', '.join(get_args(Decode))}")
        if decode == "spdl":
            transform = _decoded_by_spdl(transform)
            self.notes = transform.notes
        self._work = SampleProcessor(samples, transform, seed, workers=num_threads, processes=False)
        self._settings: dict[str, Any] = {
            "batch_size": batch_size,
            "concurrency": num_threads,
            "buffer_size": buffer_size,
            "on_error": on_error,
            "timeout_s": sample_timeout_s,
        }
        self._side = DeviceTransfer(self._device)
        self._running: SpdlEpoch | None = None

    def _batches(self, epoch: int) -> Iterator[Batch]:
        self._stop()
        running = self._running = SpdlEpoch(
            self._work,
            self._share.order(epoch),
            epoch=epoch,
            threads=self._own_threads(),
            side=self._side,
            stages=self._stages,
            **self._settings,
        )
        try:
            while True:
                made = running.next()
                self._skip(running.failed.untold())
                if made is None:
                    return
                yield self._batch(made)
        except SampleTimeoutError:
            self.close()
            raise
        finally:
            running.close()

    def _stop(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            running.close()

    def _batch(self, made: Made) -> Batch:
        tensors = made.copied.wait()
        return Batch(
            made.ids, tensors.data, tensors.labels, encoded_bytes(self._samples, made.ids), tensors.extra, made.work_s
        )


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
