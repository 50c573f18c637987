"""The streaming loader: batches of training samples from a daemon, whatever its distance."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Literal, Self

import torch

from loaders.base import Batch, LoaderStats
from loaders.device import usable_device
from loaders.errors import LoaderConfigError, LoaderError
from loaders.image import ImageTransform
from loaders.streaming.channel import Channel
from loaders.streaming.client import StreamClient
from loaders.streaming.decode import LOOKAHEAD, Decoder, TorchDecoder
from loaders.streaming.planner import BatchPlan, plan
from loaders.streaming.records import check_records

__all__ = ["StreamingLoader"]

_READY_BATCHES = 2
"""Decoded batches that wait for the training step."""


class StreamingLoader:
    """Streams TFRecord slices from a daemon over several connections and decodes them in the background.

    Up to `prefetch_batches` batches are asked for ahead, which is what hides the distance: their bytes should
    exceed the link's bandwidth-delay product. Batches come in the order in which they arrive.
    """

    def __init__(
        self,
        *,
        endpoint: str,
        transform: ImageTransform,
        batch_size: int,
        seed: int,
        device: str = "cpu",
        streams: int = 2,
        prefetch_batches: int = 8,
        decode: Literal["dali", "torch"] = "dali",
        num_threads: int = 2,
        slice_records: int = 8,
        warm_bytes: int = 8 * 2**20,
        timeout_s: float = 30.0,
        limit: int | None = None,
        verify: bool = False,
    ) -> None:
        """Connect to the daemon at `endpoint`, such as tcp://10.77.0.1:41234.

        `decode` names the engine and `num_threads` its threads. A batch is made of runs of `slice_records`
        neighbouring records. `warm_bytes` of padding are moved when connecting, so that TCP's windows are open when
        the first batch is asked for; twice the link's bandwidth-delay product is enough. `limit` ends an epoch
        after so many samples. `verify` checks every record's checksums. A daemon that is silent for `timeout_s`
        seconds while it is waited for is given up.

        Raises LoaderConfigError for an argument out of range, StreamError when nothing answers.
        """
        for name, value in (("num_threads", num_threads), ("batch_size", batch_size), ("slice_records", slice_records)):
            if value < 1:
                raise LoaderConfigError(f"{name}={value}: expected 1 or more")
        if not 1 <= prefetch_batches <= 256:
            raise LoaderConfigError(f"prefetch_batches={prefetch_batches}: expected 1 to 256")
        self._batch_size, self._seed, self._slice_records = batch_size, seed, slice_records
        self._window, self._limit, self._verify = prefetch_batches, limit, verify
        self._decoder = _decoder(decode, transform, seed, usable_device(device), num_threads, batch_size)
        self._stats = LoaderStats(details={"wait_s": 0.0})
        self._running: _Running | None = None
        self._closed = False
        try:
            self._client = StreamClient(endpoint, streams=streams, timeout_s=timeout_s, warm_bytes=warm_bytes)
        except BaseException:
            self._decoder.close()
            raise
        self.notes: tuple[str, ...] = (
            f"shuffles runs of {slice_records} samples that are neighbours in the shards, which were shuffled once",
            f"moves {warm_bytes / 2**20:.3g} MiB of padding before the first epoch to open its connections",
            *self._decoder.notes,
        )

    def __len__(self) -> int:
        """Return the number of samples in an epoch."""
        samples = self._client.catalog.samples
        return samples if self._limit is None else min(samples, self._limit)

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """Yield the epoch's batches as they arrive, every sample exactly once.

        Raises StreamError naming the daemon that is gone or refuses, SampleError naming a sample that cannot be
        decoded. A daemon that dies and comes back within the timeout costs time only.
        """
        if self._closed:
            raise LoaderError("the loader is closed: make a new one")
        self._stop()
        batches = plan(
            self._client.catalog.shard_records,
            batch_size=self._batch_size,
            seed=self._seed,
            epoch=epoch,
            slice_records=self._slice_records,
            limit=self._limit,
        )
        running = self._running = _Running(self._client, self._decoder, batches, self._window, verify=self._verify)
        try:
            while True:
                began = time.perf_counter_ns()
                batch = running.ready.get()
                self._stats.details["wait_s"] += (time.perf_counter_ns() - began) * 1e-9
                if batch is None:
                    return
                self._stats.count(batch)
                yield batch
        finally:
            running.stop()

    def stats(self) -> LoaderStats:
        """Return the counts so far.

        `wait_s` is the time the caller waited for a batch, `network_wait_s` the time the decoder waited for the
        network; `wire_bytes` are the frames' bytes, `asked_again` the requests that were repeated after a lost
        connection and `stale` the answers that came twice.
        """
        traffic = self._client.traffic
        self._stats.details |= {
            "network_wait_s": traffic.wait_s,
            "wire_bytes": traffic.bytes,
            "asked_again": traffic.asked_again,
            "stale": traffic.stale,
        }
        return self._stats

    def close(self) -> None:
        """End the threads and the connections; may be called twice, and in the middle of an epoch."""
        self._closed = True
        self._stop()
        self._decoder.close()
        self._client.close()

    def _stop(self) -> None:
        if self._running is not None:
            self._running.stop()
            self._running = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Running:
    """One epoch under way: a thread that fetches, decodes and keeps a few batches ready."""

    def __init__(
        self, client: StreamClient, decoder: Decoder, batches: Sequence[BatchPlan], window: int, *, verify: bool
    ) -> None:
        self.ready: Channel[Batch] = Channel(_READY_BATCHES)
        """Decoded batches, then the end or the error."""
        self._client, self._decoder, self._verify = client, decoder, verify
        self._fetch = client.fetch(batches, window=window)
        self._thread = threading.Thread(target=self._run, name="streaming-epoch", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            self._pump()
        except BaseException as caught:  # noqa: BLE001 - raised again in the thread that consumes
            error = caught
        finally:
            self._fetch.close()
            self._decoder.reset()
            self.ready.close(error)

    def _pump(self) -> None:
        decoder = self._decoder
        while True:
            while decoder.pending < LOOKAHEAD:
                # With a batch in decoding there is something to hand over, so what is not here yet can wait.
                raw = self._fetch.take(wait=not decoder.pending)
                if raw is None:
                    break
                if self._verify:
                    check_records(raw)
                decoder.submit(raw)
            if not decoder.pending or not self.ready.put(decoder.collect()):
                return

    def stop(self) -> None:
        """End the thread; may be called twice."""
        self.ready.close()
        if self._thread.is_alive():
            self._client.interrupt()
        self._thread.join()


def _decoder(
    name: str, transform: ImageTransform, seed: int, device: torch.device, num_threads: int, batch_size: int
) -> Decoder:
    if name == "torch":
        return TorchDecoder(transform, seed=seed, device=device, num_threads=num_threads)
    if name == "dali":
        try:
            from loaders.streaming.dali_decode import DaliDecoder
        except ImportError as error:
            raise LoaderConfigError(f"decode=dali: DALI cannot be imported ({error}); use decode=torch") from error
        return DaliDecoder(transform, seed=seed, device=device, num_threads=num_threads, batch_size=batch_size)
    raise LoaderConfigError(f"decode={name!r}: expected dali or torch")
