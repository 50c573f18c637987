"""Any pipeline with Python operators: the loader's threads run all of it, DALI takes in the batches that they made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import torch

from loaders.dali.plan import DataNode, Feed
from loaders.errors import LoaderConfigError
from loaders.pipeline import Pipeline, Tensors

__all__ = ["PythonPlan"]

_TAKEN: Final = {
    torch.float32,
    torch.float64,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
}


class PythonPlan:
    """Hands over every batch as one sample of DALI's, for its tensors may differ in their first dimensions."""

    def __init__(self, pipeline: Pipeline, reason: str) -> None:
        """Run this pipeline; `reason` says why not with DALI's operators."""
        self.ahead = pipeline
        self.decodes, self.python_only = False, True
        self.conditional = False
        self.layouts: Mapping[str, str] = {}
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
        """Return what is fed, on the device."""
        return [node.gpu() if device == "cuda" else node for node in fed.values()]

    def tensors(self, outputs: Sequence[torch.Tensor], collated: Tensors) -> Tensors:
        """Return the batch."""
        data, labels, *extra = (output.squeeze(0) for output in outputs)
        return Tensors(data, labels, dict(zip(collated.extra, extra, strict=True)))
