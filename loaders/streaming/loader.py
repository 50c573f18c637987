"""The streaming loader: batches of training samples from daemons, whatever their distance."""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Literal, Unpack, cast

import numpy as np
import numpy.typing as npt

from joulefeed.closing import Closing
from loaders.base import Batch, LoaderStats
from loaders.errors import LoaderConfigError, LoaderError
from loaders.pipeline import StageTimes
from loaders.pipeline.callables import AnyTransform, as_pipeline
from loaders.pipeline.image import ImageTransform
from loaders.records.decoding import Engine, ErrorPolicy, check_engine, make_decoder
from loaders.records.epochs import Decoded, Numbered, Raw, Running, repeat_for_failed
from loaders.records.planner import EpochPlan, count_share, plan_epoch
from loaders.records.record_loader import RecordLoader
from loaders.shared.device import DeviceTransfer, usable_device
from loaders.shared.options import LoaderKeywords, LoaderOptions, check_whole, takes_options
from loaders.shared.shares import place_among_ranks
from loaders.shared.threads import close_at_exit
from loaders.streaming.checkpoint import Checkpoint, State, StateDict
from loaders.streaming.epochs import Fetching, Planned, Schedule
from loaders.streaming.protocol import WireFormat
from loaders.streaming.receiver.batch import BatchOrder
from loaders.streaming.receiver.client import StreamClient
from loaders.streaming.receiver.connections import Endpoints
from loaders.streaming.receiver.fetch import check_window
from loaders.streaming.receiver.growth import Prefetch, Streams
from loaders.streaming.timestamps import TimestampLogger


class StreamingLoader(Closing):
    """Streams TFRecord slices from daemons over several connections and decodes them in the background.

    Up to `prefetch_batches` batches are requested ahead of each daemon, which hides the distance. One thread at a time
    uses it.
    """

    @takes_options(LoaderOptions)
    def __init__(
        self,
        *,
        transform: AnyTransform | None = None,
        endpoint: str | None = None,
        endpoints: Endpoints | None = None,
        keys: Path | str | None = None,
        streams: Streams = 2,
        prefetch_batches: Prefetch = "auto",
        prefetch_step: float = 0,
        order: BatchOrder = "arrival",
        decode: Engine = "auto",
        num_threads: int = 2,
        slice_records: int = 8,
        shuffle_window: int | None = None,
        epochs_ahead: int = 1,
        epochs: int | None = None,
        warm_bytes: int = 8 * 2**20,
        wire: WireFormat = "raw",
        timeout_s: float = 30.0,
        limit: int | None = None,
        verify: bool = True,
        events: Path | str | None = None,
        **keywords: Unpack[LoaderKeywords],
    ) -> None:
        """Connect to the daemon at `endpoint`, or to those at `endpoints`.

        Raises LoaderConfigError for an argument out of range, StreamError when a daemon does not answer.

        Args:
            transform: A pipeline, or a callable that takes a decoded image (PIL, RGB) or array and returns a tensor,
                array or number, such as torchvision's Compose (default: ImageTransform()).
            endpoint: Address of the daemon, such as tcp://10.77.0.1:41234 (default: `endpoints`).
            endpoints: Addresses of several daemons; an inner list names replicas, of which one must answer
                (default: `endpoint`).
            keys: The client's folder of keys, for daemons with keys (default: none).
            streams: Connections to each daemon; "auto" is 2, then 4 and up to 32 while goodput grows (default: 2).
            prefetch_batches: Batches that are requested ahead of each daemon; "auto" is two a stream and twice the
                bandwidth-delay product, which is learned (default: "auto").
            prefetch_step: Requests at the start of an epoch, 1 or more, and more with each batch, until
                `prefetch_batches` is reached: 0.25 asks for 5 with 4 taken; 0 requests all at once (default: 0).
            order: "arrival", "sample" for batches of the runs that arrive first, whichever batch they were planned
                for, or "strict" for the order of the plan (default: "arrival").
            decode: "dali" decodes images alone, "torch" and "torch-process" run any pipeline, "auto" takes the
                fitting one, and "raw" yields RawBatch, not decoded (default: "auto").
            num_threads: Threads that decode, or processes of "torch-process" (default: 2).
            slice_records: Neighbouring records in a run; a batch is made of runs. 0 is EMLIO's plan: whole shards, and
                batches from as many of them in turn as there are streams (default: 8).
            shuffle_window: Records that are shuffled one by one within windows of so many, 0 for none (default: 0, with
                a warning where the shards were not shuffled when they were made).
            epochs_ahead: Epochs after the current one whose batches may be requested already (default: 1).
            epochs: Number of epochs in all; another one is an error (default: no limit).
            warm_bytes: Bytes of padding that open TCP's windows at each daemon's connections before the first batch;
                twice the link's bandwidth-delay product is enough (default: 8 MiB).
            wire: "raw", or "msgpack" as in EMLIO's paper (default: "raw").
            timeout_s: Seconds of silence after which a daemon is given up (default: 30).
            limit: Samples after which an epoch ends (default: no limit).
            verify: Whether the checksum of every record is computed (default: True).
            events: File to which TimestampLogger's lines are appended (default: none).
        """
        options = LoaderOptions(**keywords)
        addresses = endpoints if endpoint is None else endpoint
        if addresses is None or (endpoint is not None and endpoints is not None):
            raise LoaderConfigError("endpoint or endpoints: give one of the two")
        num_threads = check_whole("num_threads", num_threads, 1)
        for name, given in (("keys", keys), ("events", events)):
            if not isinstance(given, str | os.PathLike | None):
                raise LoaderConfigError(f"{name}={given!r}: expected a path, or none")
        if not isinstance(verify, bool):
            raise LoaderConfigError(f"verify={verify!r}: expected true or false")
        check_window(prefetch_batches, order, prefetch_step)
        if options.imbalance:
            raise LoaderConfigError(f"imbalance={options.imbalance}: streaming makes equal shares; leave it out")
        rank, world_size = place_among_ranks(options.rank, options.world_size)
        self._batch_size, self._order = options.batch_size, order
        self._epochs_ahead = check_whole("epochs_ahead", epochs_ahead, 0)
        self._epochs = None if epochs is None else check_whole("epochs", epochs, 1)
        self._settings: StateDict = {
            "seed": check_whole("seed", options.seed, 0),
            "slice_records": slice_records,
            "shuffle_window": 0 if shuffle_window is None else shuffle_window,
            "rank": rank,
            "world_size": world_size,
            "remainder": options.remainder,
            "limit": limit,
        }
        plan_epoch([1], batch_size=options.batch_size, epoch=0, **self._settings)  # refuses settings out of range
        device = usable_device(options.device)
        pipeline = ImageTransform() if transform is None else as_pipeline(transform)
        policy = ErrorPolicy(options.on_error, options.sample_timeout_s)
        self._repeats = policy.on_error == "skip" and world_size > 1
        self._decoder = make_decoder(
            check_engine(decode, pipeline, policy),
            pipeline,
            seed=options.seed,
            device=device,
            num_threads=num_threads,
            batch_size=options.batch_size,
            policy=policy,
        )
        self._transfer = DeviceTransfer(device)
        self._stats = LoaderStats(details={"wait_s": 0.0})
        self._times = StageTimes()
        self._events: TimestampLogger | None = None
        self._running: Running[Planned] | None = None
        self._checkpoint: Checkpoint | None = None
        self._plan_under_way: EpochPlan | None = None
        self._given: list[tuple[int, ...]] = []
        self._resumed = self._closed = False
        try:
            if events is not None:
                self._events = TimestampLogger(events, rank=rank)
            self._client = StreamClient(
                addresses, streams=streams, timeout_s=timeout_s, keys=keys, warm_bytes=warm_bytes, wire=wire
            )
        except BaseException:
            self._close_helpers()
            raise
        close_at_exit(self)
        self._stretches = 1 if slice_records != 0 or streams == "auto" else streams
        self._settings |= {"catalog": self._client.catalog.fingerprint} | (
            {"batch_size": self._batch_size} if slice_records == 0 else {}
        )
        self._warn_unless_shuffled(slice_records, shuffle_window)
        pieces = self._count_pieces()
        self._piece_records = self._batch_size // pieces
        self._fetching = Fetching(self._client, prefetch_batches, order, prefetch_step, pieces, verify, self._events)
        self._notes = tuple(self._describe(warm_bytes, wire))

    def _warn_unless_shuffled(self, slice_records: int, shuffle_window: int | None) -> None:
        if shuffle_window is None and slice_records != 1 and not self._client.is_shuffled:
            warnings.warn(
                "the shards were not shuffled when they were made, and a batch is made of runs of neighbours: give "
                "shuffle_window=4096 or more if samples of one class lie together in them, and shuffle_window=0 if not",
                stacklevel=3,
            )

    def _count_pieces(self) -> int:
        """Return into how many equal requests a batch is planned that is filled by sample: of at most a run each."""
        run = self._settings["slice_records"] if self._order == "sample" else 0
        return (
            next(
                n for n in range(1, self._batch_size + 1) if self._batch_size % n == 0 and self._batch_size // n <= run
            )
            if run
            else 1
        )

    def _describe(self, warm_bytes: int, wire: WireFormat) -> Iterator[str]:
        """Yield the properties of this loader, for the report."""
        slices, window = self._settings["slice_records"], self._settings["shuffle_window"]
        within = f"records within windows of {window} of them, after " if window > 1 else ""
        runs = f"runs of {slices} samples that are neighbours in the shards" if slices else "whole shards"
        yield f"shuffles {within}{runs}"
        if wire == "msgpack":
            yield "receives every batch as one msgpack message, in which the daemon has copied its records"
        if warm_bytes:
            yield f"moves {warm_bytes / 2**20:.3g} MiB of padding before the first epoch to open its connections"
        yield from self._decoder.notes if self._decoder else ("yields encoded images, not decoded",)

    @property
    def notes(self) -> tuple[str, ...]:
        """The properties of this loader for the report, up to now."""
        asked = (
            f"; asks for {self._client.window.batches} batches ahead of each" if self._fetching.window == "auto" else ""
        )
        return (*self._notes, self._client.transport + asked)

    check_transform = staticmethod(RecordLoader.check_transform)

    def __len__(self) -> int:
        """Return the number of this rank's samples in an epoch."""
        names = ("rank", "world_size", "remainder", "limit")
        return count_share(self._client.catalog.samples, **{name: self._settings[name] for name in names})

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """Yield the epoch's batches, every sample of this rank exactly once; of a resumed epoch, the rest.

        With on_error "skip" and several ranks, a batch of which every sample failed is replaced by another one once
        more, so that all ranks take as many steps as planned; `details["repeated_samples"]` counts its samples.

        Batches of decode="raw" are RawBatch. Another call ends the epoch before it, and uses its requests ahead if
        that epoch was complete and this is the next one.

        Raises StreamError naming the daemon that is gone or refuses, SampleError naming a sample that failed and its
        stage, SampleTimeoutError naming one that is late, WorkerError naming a decoding process that died, LoaderError
        when the loader is closed, or for an epoch after the last one of `epochs`. A daemon that dies and comes back
        within the timeout costs time only.
        """
        if self._closed:
            raise LoaderError("the loader is closed: make a new one")
        self._client.check_process()
        epoch = check_whole("epoch", epoch, 0)
        if self._epochs is not None and epoch >= self._epochs:
            raise LoaderError(
                f"epoch {epoch} was asked for, and epochs={self._epochs} ends with epoch {self._epochs - 1}: give more "
                "epochs, or leave it out"
            )
        running = self._begin(epoch)
        planned = running.source.schedule.plan(epoch)
        checkpoint, given = self._checkpoint, self._given
        ended: tuple[int, ...] = ()
        assert checkpoint is not None, "an epoch has started"
        self._log("epoch_start", epoch)
        is_whole = False
        try:
            items = (self._next(running) for _ in range(math.ceil(planned.records / self._batch_size)))
            for numbers, batch, failed, is_repeat in repeat_for_failed(items) if self._repeats else items:
                for number in numbers:
                    checkpoint.delivered[planned.list_positions(number)] = True
                ended += numbers
                for one in failed:
                    self._stats.skip(*one)
                if batch is not None:
                    given.append(ended)
                    ended = ()
                    # A RawBatch counts like a Batch.
                    self._stats.count(cast(Batch, batch), is_repeat=is_repeat)
                    yield cast(Batch, batch)
            is_whole = True
            self._log("epoch_end", epoch)
        finally:
            if not is_whole or not self._epochs_ahead:
                running.stop()
                self._running = None if self._running is running else self._running

    def _next(self, running: Running[Planned]) -> Numbered:
        began = time.perf_counter_ns()
        item = running.next() if running is self._running else None
        self._stats.details["wait_s"] += (time.perf_counter_ns() - began) * 1e-9
        if item is None:
            raise LoaderError(
                "the loader was closed or another epoch was started: there are no more batches of this one"
            )
        return item

    def _begin(self, epoch: int) -> Running[Planned]:
        """Return the run of an epoch: that of the epoch before, or a new one."""
        ahead = epoch + self._epochs_ahead
        last = ahead if self._epochs is None else min(ahead, self._epochs - 1)
        checkpoint, resumed = self._checkpoint, self._resumed
        self._resumed = False
        if resumed and checkpoint is not None and checkpoint.epoch == epoch:
            self._stop()
            first = self._left(checkpoint, self._piece_records)
            first = first if self._order == "strict" else self._client.group(first)
            self._note(first, len(checkpoint.delivered), checkpoint.before)
        elif self._running and self.finished == epoch - 1:
            self._running.source.schedule.go_on(epoch, last=last)
            self._note(self._running.source.schedule.plan(epoch), len(self))
            return self._running
        else:
            self._stop()
            first = self._plan(epoch)
            self._note(first, len(self))
        source = Planned(self._fetching, Schedule(first, self._plan, last=last))
        if self._decoder is None:
            self._running = Raw(source)
        else:
            self._running = Decoded(source, self._decoder, self._transfer, self._times)
        return self._running

    def _note(self, plan: EpochPlan, records: int, before: npt.NDArray[np.bool_] | None = None) -> None:
        """Start to note the delivered samples of an epoch."""
        self._plan_under_way, self._given = plan, []
        self._checkpoint = Checkpoint.start(plan, records, before)

    def _left(self, checkpoint: Checkpoint, batch_size: int) -> EpochPlan:
        """Return the rest of a rank's epoch, in the order of its seed."""
        arguments = self._plan_arguments(checkpoint.epoch) | {"batch_size": batch_size}
        everything = plan_epoch(self._client.catalog.shard_records, **arguments, done=checkpoint.before)
        return checkpoint.left(everything)

    def _plan_arguments(self, epoch: int) -> StateDict:
        settings = {name: value for name, value in self._settings.items() if name != "catalog"}
        return settings | {"batch_size": self._piece_records, "epoch": epoch, "stretches": self._stretches}

    def _plan(self, epoch: int) -> EpochPlan:
        return self._client.plan(order=self._order, **self._plan_arguments(epoch))

    @property
    def finished(self) -> int | None:
        """The epoch that was started last, if every sample of it was delivered."""
        return self._checkpoint.epoch if self._checkpoint is not None and self._checkpoint.complete else None

    def checkpoint(self, taken: int | None = None) -> Checkpoint | None:
        """Return the checkpoint of the last epoch, after all of its delivered batches or the first `taken`.

        Raises LoaderConfigError for more batches than were delivered.
        """
        checkpoint = self._checkpoint
        if taken is None or checkpoint is None:
            return checkpoint
        taken = check_whole("taken", taken, 0, len(self._given))
        delivered = checkpoint.delivered.copy()
        for number in chain.from_iterable(self._given[taken:]):
            assert self._plan_under_way is not None, "batches are of a plan"
            delivered[self._plan_under_way.list_positions(number)] = False
        return Checkpoint(checkpoint.epoch, delivered, checkpoint.before)

    def checkpoint_after(self, epoch: int, taken: int, state: State | None) -> Checkpoint:
        """Return the checkpoint after the first `taken` batches of an epoch in planned order, resumed from `state`.

        Raises LoaderConfigError for more batches than there are, and as `load_state_dict` does.
        """
        start = self._read_state(state) if state else None
        if start is None or start.epoch != epoch:
            start = Checkpoint(epoch, np.zeros(len(self), np.bool_))
        left = self._left(start, self._batch_size)
        taken = check_whole("taken", taken, 0, len(left))
        delivered = start.delivered.copy()
        delivered[left.list_positions(left.number, taken)] = True
        return Checkpoint(epoch, delivered, start.before)

    def state_dict(self, checkpoint: Checkpoint | None = None) -> StateDict:
        """Return the position of the loader, now or of `checkpoint`: the epoch and its delivered samples.

        Numbers, text and bytes, for `torch.save` and pickle. Every rank saves its own; the states of all ranks together
        can be resumed by another number of ranks.
        """
        checkpoint = self._checkpoint if checkpoint is None else checkpoint
        return {} if checkpoint is None else checkpoint.state(self._settings)

    def load_state_dict(self, state: State) -> None:
        """Go on where `state_dict` was called: the next `epoch` of the same number yields the rest.

        Batch size, daemons, streams and engine may differ. Given a list of the states of all ranks, saved at the same
        step, rank, world size and `remainder` may differ too: the ranks share the samples that no rank has delivered.

        Raises LoaderConfigError naming a setting that differs and on which the order depends, or a rank whose state is
        missing.
        """
        self._stop()
        self._checkpoint = self._read_state(state) if state else None
        self._resumed, self._plan_under_way, self._given = self._checkpoint is not None, None, []

    def _read_state(self, state: State) -> Checkpoint:
        samples, limit = self._client.catalog.samples, self._settings["limit"]
        return Checkpoint.of(state, self._settings, samples if limit is None else min(samples, limit))

    def stats(self) -> LoaderStats:
        """Return the counts so far.

        Seconds: `wait_s` of the caller for a batch; `network_wait_s`, `decode_wait_s` and `consumer_wait_s` in which
        the loader could only wait for the network, the decoder or the caller; `verify_s` of checksums. Counts:
        `streams`, `wire_bytes` of all frames, `asked_again` (requests repeated after a lost connection), `moved`
        (to another daemon), `damaged`, `stale` (answers that came twice).
        """
        traffic, waits = self._client.traffic, self._times.seconds()
        self._stats.details |= {
            "network_wait_s": traffic.wait_s,
            "decode_wait_s": waits.get("decode_wait", 0.0),
            "consumer_wait_s": waits.get("consumer_wait", 0.0),
            "verify_s": traffic.verify_s,
            "streams": self._client.streams,
            "wire_bytes": traffic.bytes,
            "asked_again": traffic.asked_again,
            "moved": traffic.moved,
            "damaged": traffic.damaged,
            "stale": traffic.stale,
        }
        return self._stats

    def close(self) -> None:
        """End threads, processes and connections; may be called twice, and in the middle of an epoch."""
        if self._closed:
            return
        self._closed = True
        if self._decoder is not None:
            self._decoder.interrupt()
        self._stop()
        self._close_helpers()
        self._client.close()

    def _close_helpers(self) -> None:
        if self._decoder is not None:
            self._decoder.close()
        if self._events is not None:
            self._events.close()

    def _stop(self) -> None:
        if self._running is not None:
            self._running.stop()
            self._running = None

    def _log(self, event: Literal["epoch_start", "epoch_end"], epoch: int) -> None:
        if self._events is not None:
            self._events.log(event, epoch=epoch)
