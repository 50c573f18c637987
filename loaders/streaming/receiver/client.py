"""The client of the streaming service: plans epochs over the shards of all daemons and fetches their batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from loaders.records.planner import BatchPlan, EpochPlan, plan_epoch
from loaders.streaming.receiver.batch import BatchOrder
from loaders.streaming.receiver.connections import DaemonConnections
from loaders.streaming.receiver.fetch import Fetch, check_window
from loaders.streaming.receiver.growth import Prefetch


class StreamClient(DaemonConnections):
    """Connections to daemons; one thread at a time uses it, except for `interrupt`."""

    def plan(self, *, order: BatchOrder = "arrival", **arguments: Any) -> EpochPlan:
        """Plan an epoch over the shards of all daemons; the arguments are those of `planner.plan`.

        In order of arrival, all but the last few batches are made of one daemon's shards each, or of those that the
        same daemons have, so that a slow daemon does not delay the batches of others.
        """
        planned = plan_epoch(self.catalog.shard_records, **arguments)
        return planned if order == "strict" else self.group(planned)

    def group(self, planned: EpochPlan) -> EpochPlan:
        """Return a plan's records in batches of one daemon's shards each, as far as they can be."""
        groups = self.placement.groups
        return planned.group(groups) if len(set(groups)) > 1 and len(planned) else planned

    def fetch(
        self,
        batches: Iterable[BatchPlan],
        *,
        window: Prefetch,
        order: BatchOrder = "arrival",
        step: float = 0,
        pieces: int = 1,
        verify: bool | None = None,
    ) -> Fetch:
        """Start to fetch batches, which are planned epoch after epoch.

        At most `window` batches of each daemon are requested and not yet taken; "auto" is as many as the link needs. A
        `step` above 0 starts with so many and requests so many more with each one taken, until the window is full. So
        many planned `pieces` become one batch, those that arrive first; window and step count such batches. With
        `verify` every record's checksum is computed; with False the checksum that it states is compared with the
        index; None compares nothing. A damaged answer is requested once more. Raises LoaderConfigError for an argument
        out of range.
        """
        rest = iter(batches)
        return self.fetch_from(
            lambda: next(rest, None), window=window, order=order, step=step, pieces=pieces, verify=verify
        )

    def fetch_from(
        self,
        pull: Callable[[], BatchPlan | None],
        *,
        window: Prefetch,
        order: BatchOrder = "arrival",
        step: float = 0,
        pieces: int = 1,
        verify: bool | None = None,
    ) -> Fetch:
        """Start to fetch the batches that `pull` returns, whenever there is room; None is no batch for now."""
        self.check_process()
        check_window(window, order, step)
        self._read_interrupt()  # an earlier one does not end this fetch
        return Fetch(self, pull, window, order, step, pieces=pieces, verify=verify)
