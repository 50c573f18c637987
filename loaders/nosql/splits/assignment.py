"""Assigns each entity to one split, so that sizes and class counts come near to those that are asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

_Ints = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.float64]

UNASSIGNED: Final = -1
_RARE: Final = 4
"""A class is rare if the smallest split is due fewer entities of it than this."""


@dataclass(frozen=True, slots=True)
class Composition:
    """How many samples of which class each entity has, as a sparse matrix by rows."""

    starts: _Ints
    """Of the rows, shape (entities + 1,)."""
    classes: _Ints
    """Of the entries, shape (entries,)."""
    counts: _Ints
    """Of the entries, shape (entries,)."""
    sizes: _Ints
    """Samples of the entities, shape (entities,)."""
    totals: _Ints
    """Samples of the classes, shape (classes,)."""

    @classmethod
    def of(cls, entities: _Ints, classes: _Ints) -> Composition:
        """Count the samples, of which these are the codes of entity and class."""
        width = int(classes.max()) + 1
        pairs, counts = np.unique(entities * width + classes, return_counts=True)
        rows, columns = np.divmod(pairs, width)
        count = int(entities.max()) + 1
        return cls(
            np.searchsorted(rows, np.arange(count + 1)),
            columns,
            counts.astype(np.int64),
            np.bincount(entities, minlength=count).astype(np.int64),
            np.bincount(classes, minlength=width).astype(np.int64),
        )

    @property
    def entities(self) -> int:
        """Number of entities."""
        return len(self.sizes)

    def row(self, entity: int) -> slice:
        """Return the entries of an entity."""
        return slice(int(self.starts[entity]), int(self.starts[entity + 1]))

    def count_entities(self) -> _Ints:
        """Return how many entities have samples of each class, shape (classes,)."""
        return np.bincount(self.classes, minlength=len(self.totals)).astype(np.int64)


def assign(composition: Composition, shares: _Floats, seed: int) -> _Ints:
    """Return the split of every entity, shape (entities,).

    No split differs from its share of all samples by more than the largest entity has: an entity comes into a split
    that has room for all of it, and where none has, into that with the most room. Among several it comes into that
    in which its classes are filled least, relative to the split's share of them.

    Entities of one class and one size are interchangeable, so that all but a few of them are assigned at once.
    """
    assigner = _Assigner(composition, shares, seed)
    assigner.assign_alike()
    assigner.assign_rare()
    assigner.assign_rest()
    return assigner.splits


class _Assigner:
    def __init__(self, composition: Composition, shares: _Floats, seed: int) -> None:
        self._of = composition
        self._shares = shares
        self._random = np.random.default_rng(seed).permutation(composition.entities)
        self.splits = np.full(composition.entities, UNASSIGNED, np.int64)
        # One more column than classes: all samples.
        self._totals = np.append(composition.totals, composition.sizes.sum()).astype(np.float64)
        self._filled = np.zeros((len(shares), len(self._totals)))
        self._due = shares[:, None] * self._totals
        self._rare = composition.count_entities() * shares.min() < _RARE

    @property
    def _room(self) -> _Floats:
        """Samples that each split is still due, shape (splits,)."""
        return self._due[:, -1] - self._filled[:, -1]

    def assign_alike(self) -> None:
        """Give each split its share, rounded down, of the entities of one size that have one and the same class."""
        of = self._of
        pure = np.flatnonzero(np.diff(of.starts) == 1)
        classes = of.classes[of.starts[pure]]
        pure, classes = pure[~self._rare[classes]], classes[~self._rare[classes]]
        if not len(pure):
            return
        order = np.lexsort((self._random[pure], of.sizes[pure], classes))
        pure, classes = pure[order], classes[order]
        sizes = of.sizes[pure]
        first = np.append(True, (np.diff(classes) != 0) | (np.diff(sizes) != 0))
        group = np.cumsum(first) - 1
        starts = np.flatnonzero(first)
        counts = np.diff(np.append(starts, len(pure)))
        ends = np.cumsum(np.floor(counts[:, None] * self._shares), axis=1)
        split = (np.arange(len(pure)) - starts[group])[:, None] >= ends[group]
        taken = split.sum(axis=1)
        taken[taken == len(self._shares)] = UNASSIGNED
        self.splits[pure] = taken
        given = taken != UNASSIGNED
        np.add.at(self._filled, (taken[given], classes[given]), sizes[given])
        self._filled[:, -1] = self._filled[:, :-1].sum(axis=1)

    def assign_rare(self) -> None:
        """Give each split, the smallest first, one entity of each class that it would be likely to miss."""
        of = self._of
        number = of.count_entities()
        owners = np.repeat(np.arange(of.entities), np.diff(of.starts))
        order = np.lexsort((self._random[owners], of.sizes[owners], of.classes))
        starts = np.searchsorted(of.classes[order], np.arange(len(number) + 1))
        for rare in sorted(np.flatnonzero(self._rare & (number > 0)), key=lambda place: number[place]):
            candidates = owners[order[starts[rare] : starts[rare + 1]]]
            for split in np.argsort(self._shares, kind="stable"):
                left = candidates[self.splits[candidates] == UNASSIGNED]
                if not self._filled[split, rare] and len(left) and of.sizes[left[0]] <= self._room[split]:
                    self._put(int(left[0]), int(split))

    def assign_rest(self) -> None:
        """Assign the others, large entities first, in random order where they have nearly the same size."""
        of = self._of
        left = np.flatnonzero(self.splits == UNASSIGNED)
        magnitude = np.frexp(of.sizes[left].astype(np.float64))[1]
        for entity in left[np.lexsort((self._random[left], -magnitude))].tolist():
            self._put(entity, self._choose(entity))

    def _choose(self, entity: int) -> int:
        row, size, room = self._of.row(entity), int(self._of.sizes[entity]), self._room
        if room.max() < size:
            return int(room.argmax())
        classes = np.append(self._of.classes[row], len(self._totals) - 1)
        counts = np.append(self._of.counts[row], size)
        level = (self._filled[:, classes] + counts) / self._due[:, classes]
        filled = level @ (counts / self._totals[classes])
        return int(np.where(room >= size, filled, np.inf).argmin())

    def _put(self, entity: int, split: int) -> None:
        row = self._of.row(entity)
        self.splits[entity] = split
        self._filled[split, self._of.classes[row]] += self._of.counts[row]
        self._filled[split, -1] += self._of.sizes[entity]
