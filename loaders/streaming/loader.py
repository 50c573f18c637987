"""The streaming loader: batches of training samples from daemons, whatever their distance."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, cast

import numpy as np
import numpy.typing as npt

from loaders.base import Batch, LoaderStats
from loaders.errors import LoaderConfigError, LoaderError
from loaders.image import ImageTransform
from loaders.options import OnError, Remainder
from loaders.pipeline import StageTimes
from loaders.pipelines.callables import AnyTransform, as_pipeline
from loaders.shared.arguments import check_whole
from loaders.shared.device import DeviceTransfer, usable_device
from loaders.shared.shares import place_among_ranks
from loaders.shared.threads import close_at_exit
from loaders.streaming.checkpoint import Checkpoint
from loaders.streaming.decoding import Engine, ErrorPolicy, check_engine, make_decoder
from loaders.streaming.epochs import Decoded, Fetching, Numbered, Raw, Running, Schedule
from loaders.streaming.planner import EpochPlan, count_share, plan
from loaders.streaming.protocol import WireFormat
from loaders.streaming.receiver.batch import BatchOrder
from loaders.streaming.receiver.client import StreamClient
from loaders.streaming.receiver.connections import Endpoints
from loaders.streaming.receiver.fetch import check_window
from loaders.streaming.receiver.growth import Streams
from loaders.streaming.shards.mixing import BATCH, ENOUGH, SHUFFLE_WINDOW, SLICE_RECORDS
from loaders.streaming.timestamps import TimestampLogger

__all__ = ["StreamingLoader"]


class StreamingLoader:
    """Streams TFRecord slices from daemons over several connections and decodes them in the background.

    Up to `prefetch_batches` batches are asked for ahead of each daemon, which is what hides the distance: their
    bytes should exceed the link's bandwidth-delay product. One thread at a time uses it.
    """

    def __init__(
        self,
        *,
        transform: AnyTransform | None = None,
        batch_size: int,
        seed: int,
        device: str = "cpu",
        endpoint: str | None = None,
        endpoints: Endpoints | None = None,
        keys: Path | str | None = None,
        streams: Streams = 2,
        prefetch_batches: int = 8,
        prefetch_step: int = 0,
        order: BatchOrder = "arrival",
        decode: Engine = "auto",
        num_threads: int = 2,
        slice_records: int | None = None,
        shuffle_window: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        remainder: Remainder | None = None,
        part: tuple[int, int] = (0, 1),
        epochs_ahead: int = 1,
        epochs: int | None = None,
        warm_bytes: int = 8 * 2**20,
        wire: WireFormat = "raw",
        timeout_s: float = 30.0,
        limit: int | None = None,
        verify: bool = True,
        events: Path | str | None = None,
        sample_timeout_s: float | None = None,
        on_error: OnError = "raise",
    ) -> None:
        """Connect to the daemon at `endpoint`, such as tcp://10.77.0.1:41234, or to those at `endpoints`.

        Replicas are in a list of their own among the `endpoints`, and one that does not answer now is left out.

        `keys` is the client's folder of keys, for daemons that serve with keys. Each daemon gets `streams`
        connections; with "auto" 2, then 4 and up to 32, while goodput grows and the network is waited for. With
        `prefetch_step` an epoch begins with so many requests and asks for so many more with each batch, until
        `prefetch_batches` is reached. `order` is "arrival", first come, first used, or "strict".

        `transform` is a pipeline, or any callable that takes a decoded image (PIL, RGB) or array and returns a tensor,
        array or number, such as torchvision's Compose. `decode` names the engine and `num_threads` its threads or, of
        "torch-process", its processes: "dali" decodes images alone, "torch" and "torch-process" run any pipeline,
        "auto" takes the fitting one, and "raw" yields RawBatch, not decoded. A batch is made of runs of `slice_records`
        neighbouring records, or of records shuffled within windows of `shuffle_window`; with neither given, as the
        daemons say that their shards need, and of one alone the other is 8 or 0. `rank`, `world_size` and
        `remainder` share the records among ranks, see `planner.plan`; `part` (i, n) is every n-th batch of the rank's
        from the i-th on, for one of n loaders that share them. `limit` ends an epoch after so many samples.

        Requests run on up to `epochs_ahead` epochs into those that come after, of which there are `epochs` in all,
        or as many as are asked for. `warm_bytes` of padding are moved over each daemon's connections at the
        beginning, so that TCP's windows are open when the first batch is asked for; twice the link's
        bandwidth-delay product is enough. `wire` is "raw", or "msgpack" for the paper's way. `verify` computes every
        record's checksum. A daemon that is silent for `timeout_s` seconds while it is waited for is given up.
        `events` is a file to which TimestampLogger's lines are appended. A sample that is not through the pipeline
        after `sample_timeout_s` seconds ends the epoch. With on_error "skip" a sample that fails is left out of its
        batch and told in `stats`, and a batch of which nothing is left is left out too.

        Raises LoaderConfigError for an argument out of range, StreamError when a daemon does not answer.
        """
        where_from = endpoints if endpoint is None else endpoint
        if where_from is None or (endpoint is not None and endpoints is not None):
            raise LoaderConfigError("endpoint or endpoints: give one of the two")
        num_threads, epochs_ahead = (
            check_whole("num_threads", num_threads, 1),
            check_whole("epochs_ahead", epochs_ahead, 0),
        )
        epochs = None if epochs is None else check_whole("epochs", epochs, 1)
        for name, given in (("keys", keys), ("events", events)):
            if not isinstance(given, str | os.PathLike | None):
                raise LoaderConfigError(f"{name}={given!r}: expected a path, or none")
        if not isinstance(verify, bool):
            raise LoaderConfigError(f"verify={verify!r}: expected true or false")
        check_window(prefetch_batches, order, prefetch_step)
        if not 0 <= part[0] < part[1]:
            raise LoaderConfigError(f"part={part}: expected (i, n) with i from 0 to n - 1")
        rank, world_size = place_among_ranks(rank, world_size)
        batch_size, seed = check_whole("batch_size", batch_size, 1), check_whole("seed", seed, 0)
        self._settings: dict[str, Any] = {
            "seed": seed,
            "slice_records": SLICE_RECORDS if slice_records is None else slice_records,
            "shuffle_window": SHUFFLE_WINDOW if shuffle_window is None else shuffle_window,
            "rank": rank,
            "world_size": world_size,
            "remainder": remainder,
            "limit": limit,
        }
        self._batch_size, self._order, self._epochs_ahead, self._epochs = batch_size, order, epochs_ahead, epochs
        self._part = part
        plan([1], batch_size=batch_size, epoch=0, **self._settings)  # refuses what is out of range
        where = usable_device(device)
        pipeline = ImageTransform() if transform is None else as_pipeline(transform)
        policy = ErrorPolicy(on_error, sample_timeout_s)
        self._decoder = make_decoder(
            check_engine(decode, pipeline, policy),
            pipeline,
            seed=seed,
            device=where,
            num_threads=num_threads,
            batch_size=batch_size,
            policy=policy,
        )
        self._side = DeviceTransfer(where)
        self._stats = LoaderStats(details={"wait_s": 0.0})
        self._times = StageTimes()
        self._events: TimestampLogger | None = None
        self._running: Running | None = None
        self._progress: Checkpoint | None = None
        self._under_way: EpochPlan | None = None
        self._given: list[tuple[int, ...]] = []
        self._resumed = self._closed = False
        try:
            if events is not None:
                self._events = TimestampLogger(events, rank=rank)
            self._client = StreamClient(
                where_from,
                streams=streams,
                timeout_s=timeout_s,
                keys=keys,
                warm_bytes=warm_bytes,
                wire=wire,
            )
        except BaseException:
            self._close_helpers()
            raise
        close_at_exit(self)
        self._fetching = Fetching(
            self._client, prefetch_batches, order, prefetch_step, verify, self._events, self._times
        )
        self._settings["catalog"] = self._client.catalog.fingerprint
        if slice_records is None and shuffle_window is None:
            known = [mixing for mixing in self._client.mixings if mixing is not None]
            self._settings["slice_records"] = min((each.slice_records for each in known), default=SLICE_RECORDS)
            self._settings["shuffle_window"] = max((each.shuffle_window for each in known), default=SHUFFLE_WINDOW)
        self._notes: tuple[str, ...] = (
            self._mixed(),
            f"moves {warm_bytes / 2**20:.3g} MiB of padding before the first epoch to open its connections",
            *(self._decoder.notes if self._decoder else ("hands out encoded images, not decoded",)),
        )

    def _mixed(self) -> str:
        """Say how samples are shuffled and what that does to classes; warn where it mixes them badly."""
        slices, window = self._settings["slice_records"], self._settings["shuffle_window"]
        within = f"records within windows of {window} of them, after " if window > 1 else ""
        how = f"shuffles {within}runs of {slices} samples that are neighbours in the shards"
        counted = [(each, None if each is None else each.classes(slices, window)) for each in self._client.mixings]
        figures = [(classes / each.shuffled, classes, each) for each, classes in counted if each and classes]
        # With daemons that hold different shards, a batch is of one daemon's part of a window.
        is_shared = window > 1 and len(set(self._client.placement.groups)) > 1
        if len(figures) < len(counted) or is_shared:
            return f"{how}; how well that mixes classes was not measured"
        share, classes, worst = min(figures, key=lambda figure: figure[0])
        told = f"a batch of {BATCH} has {classes:.3g} classes where a full shuffle has {worst.shuffled:.3g}"
        if share < ENOUGH:
            warnings.warn(
                f"{told}: samples of a class lie together in the shards, and slice_records={slices} with "
                f"shuffle_window={window} mixes them too little; leave both out, or give slice_records="
                f"{worst.slice_records} and shuffle_window={worst.shuffle_window} for {worst.chosen:.3g} classes",
                stacklevel=3,
            )
        return f"{how}; {told}"

    @property
    def notes(self) -> tuple[str, ...]:
        """What sets this loader apart, up to now."""
        return (*self._notes, self._client.transport)

    @staticmethod
    def check_transform(
        transform: AnyTransform,
        decode: str = "auto",
        on_error: OnError = "raise",
        sample_timeout_s: float | None = None,
        **_: Any,
    ) -> None:
        """Raise LoaderConfigError for a pipeline on which, with these arguments, nothing can be trained."""
        if check_engine(decode, as_pipeline(transform), ErrorPolicy(on_error, sample_timeout_s)) == "raw":
            raise LoaderConfigError("decode=raw: nothing is trained on encoded samples; use decode=auto")

    def __len__(self) -> int:
        """Return the number of this rank's samples in an epoch."""
        names = ("rank", "world_size", "remainder", "limit")
        return count_share(self._client.catalog.samples, **{name: self._settings[name] for name in names})

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """Yield the epoch's batches, every sample of this rank exactly once; of an epoch resumed, what was left.

        Batches of decode="raw" are RawBatch. Another call ends the epoch before it, and uses what was asked for
        ahead if that was whole and this is the next one.

        Raises StreamError naming the daemon that is gone or refuses, SampleError naming a sample that failed and its
        stage, SampleTimeoutError naming one that is late, WorkerError naming a decoding process that died. A daemon
        that dies and comes back within the timeout costs time only.
        """
        if self._closed:
            raise LoaderError("the loader is closed: make a new one")
        self._client.check_process()
        epoch = check_whole("epoch", epoch, 0)
        running = self._begin(epoch)
        planned = running.schedule.plan(epoch)
        progress, given = self._progress, self._given
        ended: tuple[int, ...] = ()
        assert progress is not None, "an epoch has begun"
        self._log("epoch_start", epoch)
        is_whole = False
        try:
            for _ in range(len(planned)):
                number, batch, failed = self._next(running)
                progress.delivered[planned.positions(number)] = True
                ended = (*ended, number)
                for one in failed:
                    self._stats.skip(*one)
                if batch is not None:
                    given.append(ended)
                    ended = ()
                    # What is raw is handed out as what the protocol names; it counts alike.
                    self._stats.count(cast(Batch, batch))
                    yield cast(Batch, batch)
            is_whole = True
            self._log("epoch_end", epoch)
        finally:
            if not is_whole or not self._epochs_ahead:
                running.stop()
                self._running = None if self._running is running else self._running

    def _next(self, running: Running) -> Numbered:
        began = time.perf_counter_ns()
        item = running.next() if running is self._running else None
        self._stats.details["wait_s"] += (time.perf_counter_ns() - began) * 1e-9
        if item is None:
            raise LoaderError("the loader was closed or another epoch was begun: there are no more batches of this one")
        return item

    def _begin(self, epoch: int) -> Running:
        """Return what runs an epoch: what ran the one before, or all anew."""
        ahead = epoch + self._epochs_ahead
        last = ahead if self._epochs is None else max(epoch, min(ahead, self._epochs - 1))
        progress, resumed = self._progress, self._resumed
        self._resumed = False
        if resumed and progress is not None and progress.epoch == epoch:
            self._stop()
            first = self._left(progress)
            first = self._client.grouped(first) if self._order == "arrival" else first
            first = first.part(*self._part)
            self._note(first, len(progress.delivered), progress.before)
        elif self._running and self.finished == epoch - 1:
            self._running.schedule.go_on(epoch, last=last)
            self._note(self._running.schedule.plan(epoch), len(self))
            return self._running
        else:
            self._stop()
            first = self._plan(epoch)
            self._note(first, len(self))
        schedule = Schedule(first, self._plan, last=last)
        if self._decoder is None:
            self._running = Raw(self._fetching, schedule)
        else:
            self._running = Decoded(self._fetching, schedule, self._decoder, self._side)
        return self._running

    def _note(self, plan: EpochPlan, records: int, before: npt.NDArray[np.bool_] | None = None) -> None:
        """Begin to note what of an epoch is delivered."""
        self._under_way, self._given = plan, []
        self._progress = Checkpoint.beginning(plan, records, before)

    def _left(self, progress: Checkpoint) -> EpochPlan:
        """Return what is left of a rank's epoch, in the order of its seed."""
        everything = plan(self._client.catalog.shard_records, **self._planned(progress.epoch), done=progress.before)
        return progress.left(everything)

    def _planned(self, epoch: int) -> dict[str, Any]:
        settings = {name: value for name, value in self._settings.items() if name != "catalog"}
        return settings | {"batch_size": self._batch_size, "epoch": epoch}

    def _plan(self, epoch: int) -> EpochPlan:
        return self._client.plan(order=self._order, **self._planned(epoch)).part(*self._part)

    @property
    def finished(self) -> int | None:
        """The epoch that was begun last, if every sample of it was handed out."""
        return self._progress.epoch if self._progress is not None and self._progress.complete else None

    def progress(self, taken: int | None = None) -> Checkpoint | None:
        """Return what was handed out of the epoch begun last, all of it or that of its first `taken` batches.

        Raises LoaderConfigError for more batches than were handed out.
        """
        progress = self._progress
        if taken is None or progress is None:
            return progress
        taken = check_whole("taken", taken, 0, len(self._given))
        delivered = progress.delivered.copy()
        for number in chain.from_iterable(self._given[taken:]):
            assert self._under_way is not None, "batches are of a plan"
            delivered[self._under_way.positions(number)] = False
        return Checkpoint(progress.epoch, delivered, progress.before)

    def progress_after(
        self, epoch: int, taken: int, state: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None
    ) -> Checkpoint:
        """Return what the first `taken` batches of an epoch are in planned order, of what `state` leaves of it.

        Raises LoaderConfigError for more batches than there are, and as `load_state_dict` does.
        """
        begun = self._progress_of(state) if state else None
        if begun is None or begun.epoch != epoch:
            begun = Checkpoint(epoch, np.zeros(len(self), np.bool_))
        left = self._left(begun)
        taken = check_whole("taken", taken, 0, len(left))
        delivered = begun.delivered.copy()
        delivered[left.positions(left.number, taken)] = True
        return Checkpoint(epoch, delivered, begun.before)

    def state_dict(self, progress: Checkpoint | None = None) -> dict[str, Any]:
        """Return how far the loader has come: the epoch, and what of it was handed out, up to now or in `progress`.

        Numbers, text and bytes, so that `torch.save` and pickle keep it. Every rank keeps its own; those of all ranks
        together can be resumed by another number of ranks.
        """
        progress = self._progress if progress is None else progress
        return {} if progress is None else progress.state(self._settings)

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Go on where `state_dict` was called: the next `epoch` of the same number yields what was left.

        Batch size, daemons, streams and engine may be others than they were. Given a list of the states of all ranks,
        saved at the same step, rank, world size and `remainder` may be others too: the ranks of now share what none of
        the ranks of then has delivered.

        Raises LoaderConfigError naming a setting on which the order depends and that was another one then, or what is
        missing of the list.
        """
        self._stop()
        self._progress = self._progress_of(state) if state else None
        self._resumed, self._under_way, self._given = self._progress is not None, None, []

    def _progress_of(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> Checkpoint:
        samples, limit = self._client.catalog.samples, self._settings["limit"]
        return Checkpoint.of(state, self._settings, samples if limit is None else min(samples, limit))

    def stats(self) -> LoaderStats:
        """Return the counts so far.

        `wait_s` is the time the caller waited for a batch; `network_wait_s` the time in which nothing could be done
        but wait for the network, `decode_wait_s` for the decoder, `consumer_wait_s` for the caller, and `verify_s`
        what checksums took. `streams` are the connections, `wire_bytes` the frames' bytes, `asked_again` the requests
        that were repeated after a lost connection, `moved` those taken to another daemon, `stale` the answers that
        came twice.
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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
