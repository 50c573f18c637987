"""What a sampler draws for one epoch, and what of it has not come back yet; for resuming in the middle."""

from __future__ import annotations

import threading
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple, Self, TypeAlias

import torch

from loaders.errors import LoaderConfigError
from loaders.sample_aware.ipc.messages import Value
from loaders.sample_aware.workers.jobs import SAMPLE_STEP, SEED_MASK

State: TypeAlias = dict[str, Value]
"""Where a loader is, as `state_dict` returns it: numbers, text, tensors, and what samplers keep."""

_VERSION: Final = 2
_EPOCH_STEP: Final = 0xBF58476D1CE4E5B9
_COMPARED: Final = frozenset((int, str, bytes))


class _Drawn(NamedTuple):
    place: int
    """In the epoch."""
    index: Value
    """In the dataset; with `by_batch` those of a batch."""


@dataclass(slots=True)
class Progress:
    """Which epoch a loader is in, and the seed of its workers; the same for a loader that resumes."""

    epochs: int = 0
    """Number of epochs that were started."""
    base_seed: int | None = None
    """None before the first one."""

    @property
    def seed(self) -> int:
        """What the epoch adds to the seeds of its samples."""
        return _EPOCH_STEP * self.epochs & SEED_MASK

    def begin(self, base_seed: int) -> None:
        """Note that another epoch begins."""
        self.epochs += 1
        self.base_seed = base_seed


def check_state(state: State) -> None:
    """Raise LoaderConfigError for what `state_dict` of this version has not returned."""
    left = state.get("left")
    if left is not None and left.get("version") != _VERSION:
        raise LoaderConfigError(f"state: its version is {left.get('version')!r}, expected {_VERSION}")
    if missing := {"epochs", "base_seed", "left", "now", "start", "drew_seed"} - state.keys():
        raise LoaderConfigError(f"state: it lacks {', '.join(sorted(missing))}; expected what state_dict returns")


class EpochKeys:
    """Batches of keys (seed, index), drawn when they are wanted; a sample's seed depends on its place in the epoch.

    One thread draws at a time; any thread may ask for the state meanwhile.
    """

    def __init__(self, batches: Iterator[Value], seed: int, *, single: bool = False, by_batch: bool = False) -> None:
        """Draw from an iterator over batches of indices, or over indices with `single`.

        With `by_batch` a batch is one key, (seed of its first sample, indices).
        """
        self.seed = seed & SEED_MASK
        self._batches, self._single, self._by_batch = batches, single, by_batch
        self._lock = threading.RLock()
        self._stored: deque[list[_Drawn]] = deque()
        """Drawn and not given out."""
        self._out: dict[int, _Drawn] = {}
        """Given out, by the number of the sample in the engine, and not come back."""
        self._sizes: list[int] = []
        self._given = self._drawn = self._place = self._checksum = 0
        self._exhausted = False

    def __iter__(self) -> Iterator[list[tuple[int, object]]]:
        return self

    def __next__(self) -> list[tuple[int, object]]:
        with self._lock:
            batch = self._stored.popleft() if self._stored else self._draw()
            if batch is None:
                raise StopIteration
            self._out.update(enumerate(batch, self._given))
            self._given += len(batch)
            self._sizes.append(len(batch))
        return [((self.seed + SAMPLE_STEP * place) & SEED_MASK, index) for place, index in batch]

    def came_back(self, samples: Sequence[int]) -> None:
        """Note that the consumer has these samples, by their numbers in the engine: one batch."""
        with self._lock:
            for sample in samples:
                del self._out[sample]
            self._sizes.remove(len(samples))

    def state(self, max_drawn: int = 0) -> State:
        """Return the keys that were yielded and have not come back, and how many batches were drawn before.

        With `max_drawn` so many batches are drawn from the sampler first, so that it need not draw the same again.
        """
        with self._lock:
            for _ in range(max_drawn):
                batch = self._draw()
                if batch is None:
                    break
                self._stored.append(batch)
            waiting = [*self._out.values(), *(drawn for batch in self._stored for drawn in batch)]
            indices: Value = [drawn.index for drawn in waiting]
            if indices and all(type(index) is int for index in indices):
                indices = torch.tensor(indices, dtype=torch.int64)
            return {
                "version": _VERSION,
                "seed": self.seed,
                "places": torch.tensor([drawn.place for drawn in waiting], dtype=torch.int64),
                "indices": indices,
                "sizes": [*self._sizes, *map(len, self._stored)],
                "by_batch": self._by_batch,
                "drawn": None if self._exhausted else self._drawn,
                "checksum": self._checksum,
            }

    @classmethod
    def resumed(
        cls,
        state: State,
        batches: Iterator[Value],
        *,
        single: bool = False,
        by_batch: bool = False,
    ) -> Self:
        """Return the keys that had not come back when `state` was made, and those that `batches` has beyond.

        `batches` draws the epoch from its beginning. Raises LoaderConfigError for another loader's state.
        """
        if state["by_batch"] != by_batch:
            raise LoaderConfigError(
                f"state: it is of a dataset {'with' if state['by_batch'] else 'without'} __getitems__, and this one is "
                "not; load it with the dataset that it was made with"
            )
        keys = cls(batches, int(state["seed"]), single=single, by_batch=by_batch)
        keys._skip(state["drawn"], state["checksum"])
        indices = state["indices"].tolist() if isinstance(state["indices"], torch.Tensor) else state["indices"]
        drawn = map(_Drawn, state["places"].tolist(), indices)
        keys._stored.extend(list(islice(drawn, size)) for size in state["sizes"])
        return keys

    def _skip(self, drawn: int | None, checksum: int) -> None:
        if drawn is None:
            self._exhausted = True
            return
        while self._drawn < drawn and self._draw() is not None:
            pass
        if self._drawn < drawn or self._checksum != checksum:
            raise LoaderConfigError(
                f"state: of the {drawn} batches that the sampler had drawn it now draws others; resume with the same "
                "dataset and sampler, and give a sampler of your own state_dict and load_state_dict"
            )

    def _draw(self) -> list[_Drawn] | None:
        if self._exhausted:
            return None
        try:
            batch = next(self._batches)
        except StopIteration:
            self._exhausted = True
            return None
        batch = [batch] if self._single else list(batch)
        text = ",".join(repr(index) if type(index) in _COMPARED else type(index).__name__ for index in batch)
        self._checksum = zlib.crc32(text.encode(), self._checksum)
        self._drawn += 1
        place, self._place = self._place, self._place + len(batch)
        return (
            [_Drawn(place, batch)] if self._by_batch else [_Drawn(at, index) for at, index in enumerate(batch, place)]
        )
