"""The service as a torch dataset: batches for a plain training loop, through DataLoader or without it."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from inspect import signature
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import torch
from torch.utils.data import IterableDataset, get_worker_info

from loaders.base import Batch
from loaders.errors import LoaderConfigError, LoaderError
from loaders.records.raw_batch import RawBatch
from loaders.shared.options import check_ranks, check_whole
from loaders.shared.shares import in_process_group, place_among_ranks
from loaders.streaming.checkpoint import RankState, State, StateDict, make_ended_state
from loaders.streaming.loader import StreamingLoader

Form: TypeAlias = Literal["dict", "tuple", "batch"]
"""Of batches: a dict or tuple of tensors, as trainers take them, or this project's `Batch`."""


Yielded: TypeAlias = Batch | RawBatch | dict[str, torch.Tensor] | tuple[torch.Tensor, ...]
"""A batch in one of these forms, or not decoded."""


class _Iteration(NamedTuple):
    epoch: int
    state: State | None
    """From where the epoch goes on; None: from its beginning."""


class StreamDataset(IterableDataset[Yielded]):
    """Batches from streaming daemons; iterate it, or give it to DataLoader with batch_size=None.

    Every iteration is the next epoch, numbered from 0 or from what `set_epoch` said, even if the one before it was left
    early. Fetching and decoding go on beside the training loop, so a worker process of DataLoader raises LoaderError.
    """

    def __init__(self, *, batches: Form = "dict", **arguments: Any) -> None:
        """Take the arguments of StreamingLoader; connections are made when the first batch is asked for.

        `batches` is the form of a batch: "dict" has the tensors `data`, `labels` and `ids`, and further ones of the
        pipeline by name; "tuple" has data, labels and the further ones; "batch" is a `Batch`. Those of decode="raw" are
        RawBatch.

        `rank` and `world_size`, where they are not given, are those of torch.distributed if it is initialised, else
        RANK and WORLD_SIZE of the environment. They are those of the process that makes the dataset.
        """
        super().__init__()
        signature(StreamingLoader).bind(**arguments)  # TypeError names what is missing, or none of its arguments
        check_whole("batch_size", arguments["batch_size"], 1)
        if batches not in get_args(Form):
            raise LoaderConfigError(f"batches={batches!r}: expected dict, tuple or batch")
        self._form: Form = batches
        self._arguments = arguments
        self._place = self._place_now()
        self._loader: StreamingLoader | None = None
        self._pid = 0
        self._closed = False
        self._epoch = 0
        self._has_started = False
        self._state: State | None = None
        self._last: _Iteration | None = None

    def __iter__(self) -> Iterator[Yielded]:
        _refuse_worker()
        return self._batches()

    def _batches(self) -> Iterator[Yielded]:
        loader = self.loader
        iteration = _Iteration(self._epoch + self._has_started, self._state)
        self._begin_at(iteration.epoch, None)
        self._has_started, self._last = True, iteration
        if iteration.state:
            loader.load_state_dict(iteration.state)
        for batch in loader.epoch(iteration.epoch):
            yield _form_batch(batch, self._form) if isinstance(batch, Batch) else batch
        if self._last is iteration:
            self._epoch, self._has_started = iteration.epoch + 1, False

    def _begin_at(self, epoch: int, state: State | None) -> None:
        self._epoch, self._has_started, self._state = epoch, False, state
        self._last = None

    @property
    def epoch(self) -> int:
        """The epoch of the iteration that is under way, or else of the next one."""
        return self._epoch

    def __len__(self) -> int:
        """Return the number of this rank's batches in an epoch."""
        return math.ceil(len(self.loader) / int(self._arguments["batch_size"]))

    @property
    def loader(self) -> StreamingLoader:
        """The loader of this process, made at the first use; raises LoaderError where the rank has changed since."""
        _refuse_worker()
        if self._loader is None or self._closed or self._pid != os.getpid():  # a fork's connections are its parent's
            self._place = self._known_place()
            self._loader, self._pid, self._closed = StreamingLoader(**self._loader_arguments()), os.getpid(), False
        elif self._place != self._known_place():
            rank, world_size = self._place
            raise LoaderError(
                f"the dataset has connected as rank {rank} of {world_size}, and torch.distributed was initialised "
                "after that with others: make the dataset after init_process_group"
            )
        return self._loader

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration; one that was loaded goes on where it was."""
        epoch = check_whole("epoch", epoch, 0)
        self._begin_at(epoch, self._state if epoch == self._epoch else None)

    def state_dict(self, taken: int | None = None) -> StateDict:
        """Return the position of the dataset; batches iterated up to now do not come again.

        `taken` is the number of batches that the training loop has taken of the last iteration. It is needed where a
        wrapper takes them ahead of the loop. Without it all batches that were iterated count as taken.

        Raises LoaderConfigError for more batches than there are.
        """
        rank, world_size = self._known_place()
        share = {"rank": rank, "world_size": world_size, "remainder": self._arguments.get("remainder")}
        last = self._last
        if last is None:
            if taken:
                raise LoaderConfigError(f"taken={taken}: no iteration has started; leave it out")
            if self._state is None or isinstance(self._state, Mapping):
                return {"epoch": self._epoch, "loader": dict(self._state or {}), "share": share}
            checkpoint = self.loader.checkpoint_after(self._epoch, 0, self._state)
        else:
            assert self._loader is not None, "an iteration has a loader"
            reached = self._loader.checkpoint(taken)
            if reached is None or reached.epoch != last.epoch:  # an error came before the first batch
                reached = self._loader.checkpoint_after(last.epoch, taken or 0, last.state)
            checkpoint = reached
        done = checkpoint.complete
        state = {} if done else self.loader.state_dict(checkpoint)
        return {"epoch": checkpoint.epoch + done, "loader": state, "share": share}

    def load_state_dict(self, state: State) -> None:
        """Go on where `state_dict` was called: the next iteration yields the rest of the epoch.

        Given a list of the states of all ranks, saved at the same step, any number of ranks goes on.
        """
        if isinstance(state, Mapping):
            epoch, left = int(state["epoch"]), state["loader"]
        else:
            epoch, left = _join_ranks(state)
        if self._loader is not None:
            self._loader.load_state_dict(left or {})
        self._begin_at(epoch, left or None)

    def close(self) -> None:
        """End threads, processes and connections."""
        if self._loader is not None:
            self._loader.close()
            self._closed = True

    def __enter__(self) -> StreamDataset:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, object]:
        """Leave connections behind, and take rank and world size along."""
        return self.__dict__ | {"_loader": None, "_place": self._known_place(), "_last": None}

    def _place_now(self) -> tuple[int, int]:
        return place_among_ranks(self._arguments.get("rank"), self._arguments.get("world_size"))

    def _known_place(self) -> tuple[int, int]:
        return self._place_now() if in_process_group() else self._place

    def _loader_arguments(self) -> dict[str, Any]:
        rank, world_size = self._place
        arguments = self._arguments | {"rank": rank, "world_size": world_size}
        check_ranks(rank, world_size, arguments.get("remainder"))
        return arguments


def _refuse_worker() -> None:
    if get_worker_info() is not None:
        raise LoaderError(
            "a stream is fetched and decoded in parallel already: use DataLoader with num_workers=0, or iterate the "
            "dataset"
        )


def _form_batch(batch: Batch, form: Form) -> Yielded:
    if form == "batch":
        return batch
    if form == "tuple":
        return (batch.data, batch.labels, *batch.extra.values())
    return {"data": batch.data, "labels": batch.labels, "ids": torch.tensor(batch.ids), **batch.extra}


def _join_ranks(states: Sequence[RankState]) -> tuple[int, list[RankState]]:
    """Return the epoch of several ranks, and the state of each rank's loader in it."""
    if not states:
        raise LoaderConfigError("the list of states is empty: expected one of every rank")
    try:
        epochs = [int(state["epoch"]) for state in states]
        epoch = min(epochs)
        if max(epochs) == epoch and not any(state["loader"] for state in states):
            return epoch, []
        loaders: list[RankState] = []
        for state, own in zip(states, epochs, strict=True):
            has_started = bool(state["loader"]) and int(state["loader"]["epoch"]) == own
            if own > epoch + 1 or (own > epoch and has_started):
                raise LoaderConfigError(
                    f"one rank is in epoch {epoch}, and rank {state['share']['rank']} in epoch {own}: give states that "
                    "all ranks saved at the same step"
                )
            loaders.append(
                state["loader"] if has_started else make_ended_state(state["share"], epoch, delivered=own > epoch)
            )
    except (KeyError, TypeError, ValueError) as error:
        raise LoaderConfigError(f"the list is not of states of a StreamDataset: {error!r}") from error
    return epoch, loaders
