"""Batches of training samples, each with its id, from files or from a stream."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from loaders.base import Batch, Loader, LoaderStats, Samples
    from loaders.dali import DaliLoader
    from loaders.errors import (
        LoaderConfigError,
        LoaderError,
        SampleError,
        SampleTimeoutError,
        StreamError,
        WorkerError,
    )
    from loaders.image import ImageTransform
    from loaders.pecan import PecanLoader, SizeBalancedLoader
    from loaders.pipeline import Item, Pipeline, Tensors, Transform
    from loaders.pytorch import PyTorchLoader
    from loaders.sample_aware import SampleAwareDataLoader, SampleAwareLoader
    from loaders.spdl import SpdlLoader

__all__ = [
    "Batch",
    "DaliLoader",
    "ImageTransform",
    "Item",
    "Loader",
    "LoaderConfigError",
    "LoaderError",
    "LoaderStats",
    "PecanLoader",
    "Pipeline",
    "PyTorchLoader",
    "SampleAwareDataLoader",
    "SampleAwareLoader",
    "SampleError",
    "SampleTimeoutError",
    "Samples",
    "SizeBalancedLoader",
    "SpdlLoader",
    "StreamError",
    "Tensors",
    "Transform",
    "WorkerError",
]

# Imported when asked for: torch and DALI take seconds and memory that a storage daemon has no use for.
_MODULES: Final = {
    "Batch": "base",
    "DaliLoader": "dali",
    "ImageTransform": "image",
    "Item": "pipeline",
    "Loader": "base",
    "LoaderStats": "base",
    "PecanLoader": "pecan",
    "Pipeline": "pipeline",
    "PyTorchLoader": "pytorch",
    "SampleAwareDataLoader": "sample_aware",
    "SampleAwareLoader": "sample_aware",
    "Samples": "base",
    "SizeBalancedLoader": "pecan",
    "SpdlLoader": "spdl",
    "Tensors": "pipeline",
    "Transform": "pipeline",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES.get(name, 'errors')}"), name)
