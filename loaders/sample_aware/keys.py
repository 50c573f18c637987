"""What a sampler draws for one epoch, and what of it has not come back yet; for resuming in the middle."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple, Self

import torch

from loaders.errors import LoaderConfigError

__all__ = ["EpochKeys"]

_VERSION: Final = 1
_SAMPLE_STEP: Final = 0x9E3779B97F4A7C15
_MASK: Final = (1 << 63) - 1


class _Drawn(NamedTuple):
    place: int
    """In the epoch."""
    index: Any
    """In the dataset."""


class EpochKeys:
    """Batches of keys (seed, index), drawn when they are wanted; a sample's seed depends on its place in the epoch."""

    def __init__(self, batches: Iterable[Sequence[Any]], seed: int) -> None:
        """Draw from a sampler of batches of indices."""
        self.seed = seed & _MASK
        self._batches = self._numbered(iter(batches))
        self._stored: deque[list[_Drawn]] = deque()
        """Drawn, for a state was asked for, and not given out."""
        self._out: dict[int, _Drawn] = {}
        """Given out, by the number of the sample in the engine, and not come back."""
        self._sizes: list[int] = []
        self._given = 0

    def __iter__(self) -> Iterator[list[tuple[int, Any]]]:
        return self

    def __next__(self) -> list[tuple[int, Any]]:
        batch = self._stored.popleft() if self._stored else next(self._batches)
        self._out.update(enumerate(batch, self._given))
        self._given += len(batch)
        self._sizes.append(len(batch))
        return [((self.seed + _SAMPLE_STEP * place) & _MASK, index) for place, index in batch]

    def came_back(self, samples: Sequence[int]) -> None:
        """Note that the consumer has these samples, by their numbers in the engine: one batch."""
        for sample in samples:
            del self._out[sample]
        self._sizes.remove(len(samples))

    def state(self) -> dict[str, Any]:
        """Return what has not come back; draws the rest of the epoch from the sampler."""
        self._stored.extend(self._batches)
        waiting = [*self._out.values(), *(drawn for batch in self._stored for drawn in batch)]
        indices: Any = [drawn.index for drawn in waiting]
        if indices and all(type(index) is int for index in indices):
            indices = torch.tensor(indices, dtype=torch.int64)
        return {
            "version": _VERSION,
            "seed": self.seed,
            "places": torch.tensor([drawn.place for drawn in waiting], dtype=torch.int64),
            "indices": indices,
            "sizes": [*self._sizes, *map(len, self._stored)],
        }

    @classmethod
    def resumed(cls, state: dict[str, Any]) -> Self:
        """Return the keys that had not come back when `state` was made; raises LoaderConfigError for another's."""
        if state.get("version") != _VERSION:
            raise LoaderConfigError(f"state: its version is {state.get('version')!r}, expected {_VERSION}")
        keys = cls((), int(state["seed"]))
        indices = state["indices"].tolist() if isinstance(state["indices"], torch.Tensor) else state["indices"]
        drawn = map(_Drawn, state["places"].tolist(), indices)
        keys._stored.extend(list(islice(drawn, size)) for size in state["sizes"])
        return keys

    def _numbered(self, batches: Iterator[Sequence[Any]]) -> Iterator[list[_Drawn]]:
        place = 0
        for batch in batches:
            yield [_Drawn(at, index) for at, index in enumerate(batch, place)]
            place += len(batch)
