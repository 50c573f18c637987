"""A pipeline whose transforms run in another order than it has them, and otherwise is the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from loaders.base import Samples
from loaders.errors import LoaderConfigError, LoaderError
from loaders.pecan.declared import Resizing
from loaders.pecan.order import Order
from loaders.pipeline import Item, Pipeline, Tensors, Transform

__all__ = ["Reordered", "reorder"]


@dataclass(frozen=True, slots=True)
class Reordered:
    """Another pipeline's reading, decoding and collation, with its transforms in an order of their own."""

    of: Pipeline
    transforms: tuple[Transform, ...]

    def read(self, samples: Samples, sample_id: int) -> Any:
        """Return one sample as it is stored; raises OSError."""
        return self.of.read(samples, sample_id)

    def decode(self, encoded: Any, samples: Samples, sample_id: int) -> tuple[Any, dict[str, Any]]:
        """Return data and target of what was read; raises UndecodableError."""
        return self.of.decode(encoded, samples, sample_id)

    def collate(self, items: Sequence[Item]) -> Tensors:
        """Join transformed items."""
        return self.of.collate(items)


def reorder(pipeline: Pipeline, order: Order) -> Pipeline:
    """Return the pipeline in the order that was chosen for it, itself where nothing is moved."""
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
