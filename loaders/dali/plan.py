"""A pipeline in two parts: what Python does to a sample, and the graph of DALI's operators that goes on from there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from loaders.pipeline import Pipeline, Tensors

if TYPE_CHECKING:
    from nvidia.dali.data_node import DataNode
else:
    DataNode = Any

__all__ = ["DataNode", "Fed", "Feed", "NoOperatorsError", "Plan", "scalar"]

Feed: TypeAlias = Mapping[str, Sequence[npt.NDArray[Any]]]
"""What a batch hands to DALI's external sources: arrays by the source's name, one a sample."""

_NOT_MADE_YET = torch.empty(0)


class NoOperatorsError(Exception):
    """A pipeline that cannot be put together of DALI's operators; the message is the reason."""


class Fed(Tensors):
    """The tensors of a batch whose data DALI is to make: labels and extra are whole, or DALI makes them as well."""

    feed: Feed

    @classmethod
    def of(cls, feed: Feed, labels: torch.Tensor = _NOT_MADE_YET, extra: dict[str, torch.Tensor] | None = None) -> Fed:
        """Return tensors without data, and what data are made of."""
        made = cls(_NOT_MADE_YET, labels, extra or {})
        made.feed = feed
        return made


class Plan(Protocol):
    """How a pipeline is run through DALI."""

    ahead: Pipeline
    """What Python runs, in the loader's threads: reading, some of the steps, and the draws of the others."""
    note: str
    """Which steps run where, and why."""
    decodes: bool
    """Whether DALI decodes files, so that a damaged one ends its pipeline."""
    python_only: bool
    """Whether Python runs every step, and DALI takes each batch as one sample."""
    conditional: bool
    """Whether the graph has conditionals (`if` of what is fed), by which some samples pass operators by."""
    layouts: Mapping[str, str]
    """DALI's names of the dimensions of what is fed, where an operator asks for them."""

    def feed(self, tensors: Tensors) -> Feed:
        """Return what the graph is fed of a batch that `ahead` collated; equal names, types and ranks every time."""
        ...

    def graph(self, fed: Mapping[str, DataNode], device: str) -> Sequence[DataNode]:
        """Return the outputs, on the device: "cpu" or "cuda"."""
        ...

    def tensors(self, outputs: Sequence[torch.Tensor], collated: Tensors) -> Tensors:
        """Return the batch, on the outputs' device; `collated` is what the graph was fed of."""
        ...


def scalar(value: float, kind: type[np.generic]) -> npt.NDArray[Any]:
    """Return a number as DALI takes one for a sample, of shape ()."""
    return np.array(value, kind)
