"""Batches of training samples, each with its id, from files or from a stream."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from loaders.shared.lazy import lazy_names

if sys.argv[:1] == ["-m"]:  # what Python sets while it looks for the module that it is to run
    from joulefeed.signals import begin_program

    begin_program()

if TYPE_CHECKING:
    from loaders.base import Batch, Loader, LoaderStats, Samples
    from loaders.dali import DaliLoader
    from loaders.errors import LoaderConfigError, LoaderError, SampleError, SampleTimeoutError, StreamError, WorkerError
    from loaders.pecan import PecanLoader, SizeBalancedLoader
    from loaders.pipeline import Item, Pipeline, Tensors, Transform
    from loaders.pipeline.image import ImageTransform
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
__getattr__ = lazy_names(
    __name__,
    {
        "Batch": "base",
        "DaliLoader": "dali",
        "ImageTransform": "pipeline.image",
        "Item": "pipeline",
        "Loader": "base",
        "LoaderConfigError": "errors",
        "LoaderError": "errors",
        "LoaderStats": "base",
        "PecanLoader": "pecan",
        "Pipeline": "pipeline",
        "PyTorchLoader": "pytorch",
        "SampleAwareDataLoader": "sample_aware",
        "SampleAwareLoader": "sample_aware",
        "SampleError": "errors",
        "SampleTimeoutError": "errors",
        "Samples": "base",
        "SizeBalancedLoader": "pecan",
        "SpdlLoader": "spdl",
        "StreamError": "errors",
        "Tensors": "pipeline",
        "Transform": "pipeline",
        "WorkerError": "errors",
    },
)
