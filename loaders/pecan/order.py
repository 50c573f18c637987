"""AutoOrder: deflationary transforms early, inflationary ones late, nothing across a barrier (pure).

Pecan (Graur et al., USENIX ATC 2024) as section 5.1 of the MinatoLoader paper took it over to PyTorch.

What a transform may declare of itself, so that it can be moved; without a declaration none is moved past another.

- `commutes_with`: names of transforms with which it may change places. One of two transforms has to name the other.
- `barrier`: true for one that nothing is moved past, whatever is declared.
- `inflates(item)`: for one that enlarges some samples and shrinks others: whether it would enlarge this one. Such a
  transform is moved, sample by sample, where it enlarges.

The first two are class attributes (`ClassVar`), for they are of the transform and not of its settings.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from joulefeed.table import Table, TableColumn, to_text
from loaders.errors import LoaderConfigError, LoaderError
from loaders.pipeline import Item, Pipeline, Transform, WrappedPipeline

_SLACK: Final = 1e-3
"""A transform that changes the bytes by no more than this share does not count as changing them."""


class Kind(StrEnum):
    """What a transform does to the bytes of a sample."""

    INFLATIONARY = "inflationary"
    DEFLATIONARY = "deflationary"
    NEUTRAL = "neutral"
    BY_SAMPLE = "by sample"
    """Enlarges some and shrinks others."""
    UNKNOWN = "not measured"


@dataclass(frozen=True, slots=True)
class Placed:
    """A transform, what it does to the bytes, and where it went."""

    name: str
    kind: Kind
    bytes_in: float
    """Of a sample, on average; 0 where nothing was measured."""
    bytes_out: float
    before: int
    """Its place in the pipeline as it was, the first being 1."""
    after: int
    """Its place as it is now; for a transform by sample, of those samples that it enlarges."""
    reason: str

    @property
    def factor(self) -> float | None:
        """Bytes out by bytes in; None where there are none."""
        return self.bytes_out / self.bytes_in if self.bytes_in else None

    @property
    def moved(self) -> bool:
        """Whether its place has changed by a move of its own, and not only because another was moved past it."""
        return self.reason.startswith("moved")


@dataclass(frozen=True, slots=True)
class TransformOrder:
    """The order that was chosen, and why."""

    placed: tuple[Placed, ...]
    """In the pipeline's own order."""
    chosen: tuple[int, ...]
    """Indices of the pipeline's transforms in the new order; a transform by sample stands where it was."""
    postponed: tuple[tuple[int, int], ...]
    """Of every transform by sample that can be moved: its index, and that of the transform that it comes after then."""
    samples: int
    """How many were measured."""

    @property
    def changes(self) -> bool:
        """Whether anything is moved."""
        return any(one.moved for one in self.placed)

    def __str__(self) -> str:
        """Return the table that is logged: a line for every transform."""
        names = ("transform", "bytes in", "bytes out", "factor", "class", "from", "to", "why")
        return to_text(Table([TableColumn(name, left=True) for name in names], [_row(one) for one in self.placed]))


def auto_order(transforms: Sequence[Transform], sizes: npt.NDArray[np.int64], failure: str = "") -> TransformOrder:
    """Choose the order of a pipeline's transforms from the bytes that were measured.

    Args:
        transforms: in the pipeline's own order.
        sizes: bytes of data and target into and out of each transform, shape (samples, transforms, 2).
        failure: why the rest of the samples, or all of them, could not be measured.
    """
    samples = len(sizes)
    if not samples:
        why = f"stays: no sample could be measured ({failure or 'there is none'})"
        unknown = [Placed(one.name, Kind.UNKNOWN, 0, 0, at, at, why) for at, one in enumerate(transforms, 1)]
        return TransformOrder(tuple(unknown), tuple(range(len(transforms))), (), 0)
    flows = sizes.mean(axis=0).tolist()
    grown = (sizes[:, :, 1] > sizes[:, :, 0]).sum(axis=0).tolist()
    kinds = [_kind(one, into, out) for one, (into, out) in zip(transforms, flows, strict=True)]
    plan = _Arrangement(transforms, kinds)
    for index in [k for k, kind in enumerate(kinds) if kind is Kind.DEFLATIONARY]:
        plan.move(index, -1)
    for index in reversed([k for k, kind in enumerate(kinds) if kind is Kind.INFLATIONARY]):
        plan.move(index, 1)
    for index in [k for k, kind in enumerate(kinds) if kind is Kind.BY_SAMPLE]:
        plan.postpone(index, f"{grown[index]} of {samples} samples grow")
    placed = [
        Placed(
            one.name, kind, into, out, at + 1, plan.place(at) + 1, plan.reasons.get(at, "stays: it changes no bytes")
        )
        for at, (one, kind, (into, out)) in enumerate(zip(transforms, kinds, flows, strict=True))
    ]
    return TransformOrder(tuple(placed), tuple(plan.sequence), tuple(plan.postponed.items()), samples)


class _Arrangement:
    """A sequence of transforms in which each may be moved within what it is declared to commute with."""

    def __init__(self, transforms: Sequence[Transform], kinds: Sequence[Kind]) -> None:
        self.sequence = list(range(len(transforms)))
        self.reasons: dict[int, str] = {}
        self.postponed: dict[int, int] = {}
        self._transforms = transforms
        self._kinds = kinds

    def place(self, index: int) -> int:
        """Return where a transform ends up."""
        return self.sequence.index(self.postponed.get(index, index))

    def postpone(self, index: int, share: str) -> None:
        """Find where a transform goes for the samples that it enlarges, `share` of all; for the others it stays."""
        at = self.sequence.index(index)
        to, stopped = self._reach(index, 1)
        if to == at:
            self.reasons[index] = f"stays: {share}, {stopped}"
        else:
            self.postponed[index] = self.sequence[to]
            self.reasons[index] = f"moved where it enlarges ({share}): {stopped}"

    def move(self, index: int, step: int) -> None:
        """Move a transform as early (step -1) or as late (1) as it may be."""
        at = self.sequence.index(index)
        to, stopped = self._reach(index, step)
        if to == at:
            self.reasons[index] = f"stays: {stopped}"
        else:
            self.sequence.insert(to, self.sequence.pop(at))
            self.reasons[index] = f"moved: {stopped}"

    def _reach(self, index: int, step: int) -> tuple[int, str]:
        """Return the place that a transform can be moved to in a direction, and what ends the way."""
        at = to = self.sequence.index(index)
        stopped = "to the end" if step > 0 else "to the front"
        if is_barrier(self._transforms[index]):
            return at, "it is a barrier"
        while 0 <= to + step < len(self.sequence):
            other = self.sequence[to + step]
            if is_barrier(self._transforms[other]):
                stopped = f"up to the barrier {self._transforms[other].name}"
                break
            if not commute(self._transforms[index], self._transforms[other]):
                stopped = f"not declared to commute with {self._transforms[other].name}"
                break
            to += step
        # To pass one of its own kind gains nothing unless something else lies beyond.
        while to != at and self._kinds[self.sequence[to]] is self._kinds[index]:
            to -= step
        if to == at and stopped.startswith("to the"):
            stopped = "already last" if step > 0 else "already first"
        return to, stopped


def _kind(transform: Transform, bytes_in: float, bytes_out: float) -> Kind:
    if isinstance(transform, Resizing):
        return Kind.BY_SAMPLE
    if bytes_out > bytes_in * (1 + _SLACK):
        return Kind.INFLATIONARY
    return Kind.DEFLATIONARY if bytes_out < bytes_in * (1 - _SLACK) else Kind.NEUTRAL


def _row(one: Placed) -> tuple[str, ...]:
    known = one.factor is not None
    sizes = [f"{each:,.0f}" if known else "-" for each in (one.bytes_in, one.bytes_out)]
    factor = "-" if one.factor is None else f"{one.factor:.3g}"
    return (one.name, *sizes, factor, one.kind.value, str(one.before), str(one.after), one.reason)


@runtime_checkable
class Resizing(Transform, Protocol):
    """A transform that knows for every sample whether it would enlarge it."""

    def inflates(self, item: Item) -> bool:
        """Return whether the item would have more bytes after this step than it has now."""


def commute(one: Transform, other: Transform) -> bool:
    """Return whether two transforms are declared to give the same in either order; raises LoaderConfigError."""
    return other.name in partners(one) or one.name in partners(other)


def is_barrier(transform: Transform) -> bool:
    """Return whether nothing may be moved past a transform."""
    return bool(getattr(transform, "barrier", False))


def partners(transform: Transform) -> Collection[str]:
    """Return the names with which a transform declares to commute; raises LoaderConfigError for anything but names."""
    names: object = getattr(transform, "commutes_with", frozenset())
    if isinstance(names, str) or not isinstance(names, Collection) or not all(isinstance(name, str) for name in names):
        raise LoaderConfigError(
            f"{transform.name}.commutes_with={names!r}: expected the names of transforms, frozenset({{'Normalize'}}) "
            "for one"
        )
    return names


@dataclass(frozen=True)
class Reordered(WrappedPipeline):
    """Another pipeline's reading, decoding and collation, with its transforms in another order."""

    steps: tuple[Transform, ...]

    @property
    def transforms(self) -> tuple[Transform, ...]:
        """The steps in their new order."""
        return self.steps


def reorder(pipeline: Pipeline, order: TransformOrder) -> Pipeline:
    """Return the pipeline in the order that was chosen for it, itself where nothing is moved.

    Raises LoaderConfigError for the order of another pipeline.
    """
    transforms = pipeline.transforms
    if [one.name for one in order.placed] != [one.name for one in transforms]:
        raise LoaderConfigError(
            f"the order was chosen for {', '.join(one.name for one in order.placed)}, and the pipeline has "
            f"{', '.join(one.name for one in transforms)}"
        )
    if not order.changes:
        return pipeline
    after: dict[int, list[Transform]] = {}
    early: dict[int, Transform] = {}
    for index, behind in order.postponed:
        by_sample = transforms[index]
        assert isinstance(by_sample, Resizing)
        early[index] = _InPlace(by_sample)
        after.setdefault(behind, []).append(_Postponed(by_sample))
    steps: list[Transform] = []
    for index in order.chosen:
        steps += [early.get(index, transforms[index]), *after.get(index, [])]
    return Reordered(pipeline, tuple(steps))


@dataclass(frozen=True, slots=True)
class _InPlace:
    """Applies a transform to the samples that it does not enlarge."""

    of: Resizing

    @property
    def name(self) -> str:
        return self.of.name

    def __call__(self, item: Item) -> Item:
        later = self.of.inflates(item)
        item = item if later else self.of(item)
        item.target[_key(self.of)] = later
        return item


@dataclass(frozen=True, slots=True)
class _Postponed:
    """Applies a transform to the samples that it enlarges."""

    of: Resizing

    @property
    def name(self) -> str:
        return f"{self.of.name} (late)"

    def __call__(self, item: Item) -> Item:
        later = item.target.pop(_key(self.of), None)
        if later is None:
            raise LoaderError(
                f"a transform after {self.of.name} has dropped keys of the item's target that are not its"
            )
        return self.of(item) if later else item


def _key(transform: Resizing) -> str:
    return f"{transform.name} is later"
