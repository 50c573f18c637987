"""The service as a torch dataset: batches for a plain training loop, through DataLoader or without it."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from inspect import signature
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch.utils.data import IterableDataset, get_worker_info

from loaders.base import Batch
from loaders.errors import LoaderConfigError, LoaderError
from loaders.records.raw_batch import RawBatch
from loaders.shared.options import check_ranks, check_whole
from loaders.shared.shares import in_process_group, place_among_ranks
from loaders.streaming.checkpoint import AnyState, StateDict, has_ended
from loaders.streaming.loader import StreamingLoader

Form: TypeAlias = Literal["dict", "tuple", "batch"]
"""Of batches: a dict or tuple of tensors, as trainers take them, or this project's `Batch`."""


Yielded: TypeAlias = Batch | RawBatch | dict[str, torch.Tensor] | tuple[torch.Tensor, ...]
"""A batch in one of these forms, or not decoded."""


class StreamDataset(IterableDataset[Yielded]):
    """Batches from streaming daemons; iterate it, or give it to DataLoader with batch_size=None.

    Every iteration is the next epoch, numbered from 0 or from what `set_epoch` said, even if the one before it was left
    early. Fetching and decoding go on beside the training loop, so a worker process of DataLoader raises LoaderError.
    """

    def __init__(self, *, batches: Form = "dict", **arguments: Any) -> None:
        """Keep the arguments of StreamingLoader; connections are made when the first batch is asked for.

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
        self._state: AnyState | None = None
        """From where the next iteration goes on; None: from the beginning of its epoch."""
        self._is_in_loader = False
        """Whether the loader has the position."""

    def __iter__(self) -> Iterator[Yielded]:
        _refuse_worker()
        return self._batches()

    def _batches(self) -> Iterator[Yielded]:
        loader, state = self.loader, self._state
        epoch = self._epoch + self._has_started
        loader.load_state_dict(state or {})
        self._epoch, self._has_started, self._state, self._is_in_loader = epoch, True, None, True
        for batch in loader.epoch(epoch):
            yield _form_batch(batch, self._form) if isinstance(batch, Batch) else batch
        if self._epoch == epoch and self._is_in_loader:
            self._epoch, self._has_started = epoch + 1, False

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

    def _begin_at(self, epoch: int, state: AnyState | None) -> None:
        self._epoch, self._state = epoch, state
        self._has_started = self._is_in_loader = False

    def state_dict(self, taken: int | None = None) -> StateDict:
        """Return the position of the dataset; batches iterated up to now do not come again.

        `taken` is the number of batches that the training loop has taken of the last iteration. It is needed where a
        wrapper takes them ahead of the loop. Without it all batches that were iterated count as taken.

        Raises LoaderConfigError for more batches than there are.
        """
        if self._state is None and not self._is_in_loader:
            check_whole("taken", taken or 0, 0, 0)
            return {"epoch": self._epoch, "loader": {}}
        if isinstance(self._state, Mapping):
            return {"epoch": self._epoch, "loader": dict(self._state)}
        if self._state is not None:
            self.loader.load_state_dict(self._state)
        assert self._loader is not None, "it has the position"
        state = self._loader.state_dict(taken)
        return {"epoch": state["epoch"] + state["is_complete"] if state else self._epoch, "loader": state}

    def load_state_dict(self, state: AnyState) -> None:
        """Go on where `state_dict` was called: the next iteration yields the rest of the epoch.

        Given a list of the states of all ranks, saved at the same step, any number of ranks goes on.

        Raises LoaderConfigError for anything but such states, and as StreamingLoader's `load_state_dict` does.
        """
        states = [state] if isinstance(state, Mapping) else list(state)
        try:
            epoch = min(int(each["epoch"]) for each in states)
            left = [each["loader"] for each in states]
            is_between = all(not each or has_ended(each) for each in left)
        except (KeyError, TypeError, ValueError) as error:
            raise LoaderConfigError(f"it is not the state of a StreamDataset, nor a list of them: {error!r}") from error
        position: AnyState = left[0] if isinstance(state, Mapping) else left
        if self._loader is not None:
            self._loader.load_state_dict({} if is_between else position)
        self._begin_at(epoch, None if is_between else position)

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
        return self.__dict__ | {"_loader": None, "_place": self._known_place(), "_is_in_loader": False}

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
