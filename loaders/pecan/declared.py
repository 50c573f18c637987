"""What a transform may declare of itself, so that it can be moved; without a declaration none is moved past another.

- `commutes_with`: names of transforms with which it may change places. One of two transforms has to name the other.
- `barrier`: true for one that nothing is moved past, whatever is declared.
- `inflates(item)`: for one that enlarges some samples and shrinks others: whether it would enlarge this one. Such a
  transform is moved, sample by sample, where it enlarges.

The first two are class attributes (`ClassVar`), for they are of the transform and not of its settings.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol, runtime_checkable

from loaders.errors import LoaderConfigError
from loaders.pipeline import Item, Transform

__all__ = ["Resizing", "commute", "is_barrier", "partners"]


@runtime_checkable
class Resizing(Transform, Protocol):
    """A transform that knows for every sample whether it would enlarge it."""

    def inflates(self, item: Item) -> bool:
        """Return whether the item would have more bytes after this step than it has now."""
        ...


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
