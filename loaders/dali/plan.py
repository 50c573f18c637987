"""A pipeline in two parts: what Python does to a sample, and the graph of DALI's operators that goes on from there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from nvidia.dali import types

from loaders.errors import LoaderConfigError
from loaders.pipeline import Pipeline, Tensors

if TYPE_CHECKING:
    from nvidia.dali.data_node import DataNode
else:
    DataNode = Any

__all__ = ["DALI_TYPES", "DaliPlan", "DataNode", "Fed", "Feed", "Inputs", "NoOperatorsError", "PythonPlan", "scalar"]

Feed: TypeAlias = Mapping[str, Sequence[npt.NDArray[np.generic]]]
"""What a batch feeds to DALI's external sources: arrays by the source's name, one a sample."""
Inputs: TypeAlias = Sequence[tuple[str, tuple[np.dtype[Any], int]]]
"""The external sources of a graph: names, and type and rank of a sample's array."""

_NOT_MADE_YET = torch.empty(0)
_FLOATS: Final = (types.FLOAT, types.FLOAT64, types.FLOAT16)
_WHOLE: Final = (types.INT64, types.INT32, types.INT16, types.INT8, types.UINT8, types.BOOL)
DALI_TYPES: Final = {np.dtype(types.to_numpy_type(kind)): kind for kind in (*_FLOATS, *_WHOLE)}
"""DALI's types of the arrays that a graph can be fed."""
_TAKEN: Final = frozenset(torch.from_numpy(np.empty(0, kind)).dtype for kind in DALI_TYPES)


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


class DaliPlan(ABC):
    """How a pipeline is run through DALI."""

    ahead: Pipeline
    """What Python runs, in the loader's threads: reading, some of the steps, and the draws of the others."""
    note: str
    """Which steps run where, and why."""
    decodes: bool = False
    """Whether DALI decodes files, so that a damaged one ends its pipeline."""
    python_only: bool = False
    """Whether Python runs every step, and DALI takes each batch as one sample."""
    conditional: bool = False
    """Whether the graph has conditionals (`if` of an input), by which some samples skip operators."""
    inputs: Inputs = ()
    """What the graph is fed; empty where only a batch shows it."""
    layouts: Mapping[str, str] = MappingProxyType({})
    """DALI's names of the inputs' dimensions, where an operator asks for them."""

    def feed(self, tensors: Tensors) -> Feed:
        """Return what the graph is fed of a batch that `ahead` collated; equal names, types and ranks every time."""
        assert isinstance(tensors, Fed)
        return tensors.feed

    @abstractmethod
    def graph(self, fed: Mapping[str, DataNode], device: str) -> Sequence[DataNode]:
        """Return the outputs, on the device: "cpu" or "cuda"."""

    def tensors(self, outputs: Sequence[torch.Tensor], collated: Tensors) -> Tensors:
        """Return the batch, on the outputs' device; `collated` is what the graph was fed of."""
        device = outputs[0].device
        return Tensors(outputs[0], collated.labels, collated.extra).each(lambda tensor: tensor.to(device))


class PythonPlan(DaliPlan):
    """Any pipeline with Python operators: threads run all of it, and DALI takes in each batch as one sample.

    The tensors of a batch may differ in their first dimensions, so they cannot be a batch of DALI's.
    """

    python_only = True

    def __init__(self, pipeline: Pipeline, reason: str) -> None:
        """Run this pipeline; `reason` says why not with DALI's operators."""
        self.ahead = pipeline
        steps = ", ".join(("reading", "decoding", *(step.name for step in pipeline.transforms), "collation"))
        self.note = f"Python operators, for {reason}: threads run {steps} and hand batches to DALI's external_source"

    def feed(self, tensors: Tensors) -> Feed:
        """Return every tensor as one array; raise LoaderConfigError for a type that DALI has not."""
        named = {"data": tensors.data, "labels": tensors.labels, **{f"extra {k}": t for k, t in tensors.extra.items()}}
        for tensor in named.values():
            if tensor.dtype not in _TAKEN:
                raise LoaderConfigError(f"DALI takes no tensors of {tensor.dtype}: have the pipeline yield others")
        return {name: [tensor.numpy()] for name, tensor in named.items()}

    def graph(self, fed: Mapping[str, DataNode], device: str) -> Sequence[DataNode]:
        """Return the arrays that are fed, on the device."""
        return [node.gpu() if device == "cuda" else node for node in fed.values()]

    def tensors(self, outputs: Sequence[torch.Tensor], collated: Tensors) -> Tensors:
        """Return the batch."""
        data, labels, *extra = (output.squeeze(0) for output in outputs)
        return Tensors(data, labels, dict(zip(collated.extra, extra, strict=True)))


def scalar(value: float, kind: type[np.generic]) -> npt.NDArray[np.generic]:
    """Return a number as DALI takes one for a sample, of shape ()."""
    return np.array(value, kind)
