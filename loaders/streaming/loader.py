"""The streaming loader: batches of training samples from daemons, whatever their distance."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from itertools import chain
from typing import Any

from loaders.base import Batch, LoaderStats
from loaders.errors import LoaderError
from loaders.pipeline.callables import AnyTransform
from loaders.records.epochs import DeliveredBatch
from loaders.records.planner import EpochPlan, count_share, plan_epoch
from loaders.records.record_loader import RecordLoader
from loaders.shared.options import check_whole, takes_options
from loaders.streaming.checkpoint import AnyState, Checkpoint, StateDict
from loaders.streaming.receiver.connections import DaemonConnections
from loaders.streaming.receiver.fetch import BatchFetch
from loaders.streaming.settings import StreamSettings
from loaders.streaming.timestamps import TimestampLogger


class StreamingLoader(RecordLoader):
    """Streams TFRecord slices from daemons over several connections and decodes them in the background.

    Up to `prefetch_batches` batches are requested ahead of each daemon, which hides the distance. One thread at a time
    uses it.
    """

    @takes_options(StreamSettings)
    def __init__(self, *, transform: AnyTransform | None = None, **keywords: Any) -> None:
        """Connect to the daemon at `endpoint`, or to those at `endpoints`.

        Raises LoaderConfigError for an argument out of range, StreamError when a daemon does not answer.

        Args:
            transform: A pipeline, or a callable that takes a decoded image (PIL, RGB) or array and returns a tensor,
                array or number, such as torchvision's Compose (default: ImageTransform()).
        """
        settings = self._settings = StreamSettings(**keywords)
        super().__init__(settings, transform=transform)
        self._events: TimestampLogger | None = None
        self._connections: DaemonConnections | None = None
        self._resumed: Checkpoint | None = None
        self._plan: EpochPlan | None = None
        self._given: list[tuple[int, ...]] = []
        """The numbers of the planned batches that were delivered with each batch, ..."""
        self._ended: tuple[int, ...] = ()
        """... and of those after it of which every sample failed."""
        try:
            if settings.events is not None:
                self._events = TimestampLogger(settings.events, rank=self._ranks[0])
            self._connections = DaemonConnections(settings)
            catalog = self._connections.shards.catalog
            self._shard_records, self._records = catalog.shard_records, catalog.samples
            if settings.limit is not None:
                self._records = min(self._records, settings.limit)
            self._open(catalog.samples)
        except BaseException:
            self.close()
            raise
        rank, world_size = self._ranks
        self._planned_by: StateDict = {
            "seed": settings.seed,
            "slice_records": settings.slice_records,
            "shuffle_window": settings.window_records,
            "rank": rank,
            "world_size": world_size,
            "remainder": settings.remainder,
            "limit": settings.limit,
        }
        self._fingerprint: StateDict = {"catalog": catalog.fingerprint}
        if settings.slice_records == 0:
            self._fingerprint |= {"batch_size": settings.batch_size}
        if settings.shuffle_window is None and settings.slice_records != 1 and not self._connections.is_shuffled:
            warnings.warn(
                "the shards were not shuffled when they were made, and a batch is made of runs of neighbours: give "
                "shuffle_window=4096 or more if samples of one class lie together in them, and shuffle_window=0 if not",
                stacklevel=2,
            )
        self.notes = (*self._describe(settings), *self.notes, self._connections.transport)

    @staticmethod
    def _describe(settings: StreamSettings) -> Iterator[str]:
        """Yield the properties of this loader, for the report."""
        slices, window = settings.slice_records, settings.window_records
        within = f"records within windows of {window} of them, after " if window > 1 else ""
        runs = f"runs of {slices} samples that are neighbours in the shards" if slices else "whole shards"
        yield f"shuffles {within}{runs}"
        if settings.wire == "msgpack":
            yield "receives every batch as one msgpack message, in which the daemon has copied its records"
        if settings.warm_bytes:
            mib = f"{settings.warm_bytes / 2**20:.3g} MiB"
            yield f"moves {mib} of padding before the first epoch to open its connections"

    def __len__(self) -> int:
        """Return the number of this rank's samples in an epoch."""
        rank, world_size = self._ranks
        return count_share(
            self._records, rank=rank, world_size=world_size, remainder=self._settings.remainder, limit=None
        )

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """Yield the epoch's batches, every sample of this rank exactly once; of a resumed epoch, the rest.

        With on_error "skip" and several ranks, a batch of which every sample failed is replaced by another one once
        more, so that all ranks take as many steps as planned; `details["repeated_samples"]` counts its samples.

        Batches of decode="raw" are RawBatch. Another call ends the epoch before it.

        Raises StreamError naming the daemon that is gone or refuses, SampleError naming a sample that failed and its
        stage, SampleTimeoutError naming one that is late, WorkerError naming a decoding process that died, LoaderError
        when the loader is closed. A daemon that dies and comes back within the timeout costs time only.
        """
        yield from super().epoch(epoch)
        if self._events is not None:
            self._events.log("epoch_end", epoch=epoch)

    def _start(self, epoch: int) -> BatchFetch:
        connections = self._open_connections()
        connections.check_process()
        if self._resumed is None or self._resumed.epoch != epoch or self._plan is not None:
            self._resumed = Checkpoint.start(epoch, self._records)
        self._plan = plan = self._plan_rest(self._resumed)
        self._given, self._ended = [], ()
        if self._events is not None:
            self._events.log("epoch_start", epoch=epoch)
        return BatchFetch(connections, plan, pieces=self._settings.pieces, events=self._events)

    def _plan_rest(self, checkpoint: Checkpoint) -> EpochPlan:
        """Return the undelivered rest of a rank's epoch."""
        plan = plan_epoch(
            self._shard_records,
            batch_size=self._settings.batch_size // self._settings.pieces,
            epoch=checkpoint.epoch,
            stretches=self._settings.stretches,
            done=checkpoint.before,
            **self._planned_by,
        )
        if checkpoint.delivered.any():
            delivered = int(checkpoint.delivered.sum())
            plan = plan.exclude(checkpoint.delivered, number=-(-delivered // plan.batch_size))
        return plan if self._settings.order == "strict" else self._open_connections().group(plan)

    def _open_connections(self) -> DaemonConnections:
        if self._connections is None:
            raise LoaderError("the loader is closed: make a new one")
        return self._connections

    def _count(self, epoch: int) -> int:
        assert self._plan is not None, "an epoch has started"
        return self._plan.records

    def _note(self, item: DeliveredBatch) -> None:
        self._ended += item.planned
        if item.batch is not None:
            self._given.append(self._ended)
            self._ended = ()

    def state_dict(self, taken: int | None = None) -> StateDict:
        """Return the position of the loader: the epoch and its delivered samples; {} before the first epoch.

        `taken` is the number of batches that count as delivered, the first ones of the last epoch (default: all).

        Numbers, text and bytes, for `torch.save` and pickle. Every rank saves its own; the states of all ranks together
        can be resumed by another number of ranks.

        Raises LoaderConfigError for more batches than were delivered.
        """
        checkpoint, numbers = self._resumed, [*chain.from_iterable(self._given), *self._ended]
        if taken is not None:
            numbers = list(chain.from_iterable(self._given[: check_whole("taken", taken, 0, len(self._given))]))
        if checkpoint is None:
            return {}
        plan = self._plan if self._plan is not None else self._plan_rest(checkpoint)
        delivered, left = checkpoint.delivered.copy(), plan.records
        for number in numbers:
            positions = plan.list_positions(number)
            delivered[positions] = True
            left -= len(positions)
        state = Checkpoint(checkpoint.epoch, delivered, checkpoint.before)
        return state.state(self._planned_by | self._fingerprint, is_complete=not left)

    def load_state_dict(self, state: AnyState) -> None:
        """Go on where `state_dict` was called: the next `epoch` of the same number yields the rest.

        Batch size, daemons, streams and engine may differ. Given a list of the states of all ranks, saved at the same
        step, rank, world size and `remainder` may differ too: the ranks share the samples that no rank has delivered.

        Raises LoaderConfigError naming a setting that differs and on which the order depends, or the ranks whose states
        are missing.
        """
        self._stop()
        settings = self._planned_by | self._fingerprint
        self._resumed = Checkpoint.of(state, settings, self._records) if state else None
        self._plan, self._given, self._ended = None, [], ()

    def stats(self) -> LoaderStats:
        """Return the counts so far.

        Seconds: `wait_s` of the caller for a batch; `network_wait_s`, `decode_wait_s` and `consumer_wait_s` in which
        the loader could only wait for the network, the decoder or the caller; `verify_s` of checksums. Counts:
        `streams`, `prefetch_batches` that the links need, `padding_bytes` asked for at first, `wire_bytes` received,
        `asked_again` (requests repeated after a lost connection), `damaged`, `stale` (answers that came twice).
        """
        stats = super().stats()
        if self._connections is not None:
            counters = self._connections.counters
            stats.details |= {
                "verify_s": counters.verify_s,
                "prefetch_batches": self._connections.window.batches,
                "padding_bytes": self._settings.warm_bytes * len(self._connections.daemons),
                "streams": self._settings.streams * len(self._connections.daemons),
                "wire_bytes": counters.bytes,
                "asked_again": counters.asked_again,
                "damaged": counters.damaged,
                "stale": counters.stale,
            }
        return stats

    def close(self) -> None:
        """End threads, processes and connections; may be called twice, and in the middle of an epoch."""
        super().close()
        if self._events is not None:
            self._events.close()
        if self._connections is not None:
            self._connections.close()
