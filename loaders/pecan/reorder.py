"""A pipeline whose transforms run in another order than it has them, and otherwise is the same."""

from __future__ import annotations

from dataclasses import dataclass

from loaders.errors import LoaderConfigError, LoaderError
from loaders.pecan.order import Resizing, TransformOrder
from loaders.pipeline import Item, Pipeline, Transform, WrappedPipeline


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
