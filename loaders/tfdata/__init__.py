"""tf.data service: TensorFlow's dispatcher and workers on the storage node, batches of records on a compute node."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from loaders.tfdata.loader import TfDataLoader
    from loaders.tfdata.options import DaemonOptions

__all__ = ["ENVIRONMENT", "DaemonOptions", "TfDataLoader"]

ENVIRONMENT: Final = "tensorflow"
"""The environment in which daemon and loader run: playbooks/tensorflow.sh makes it."""

# Imported when asked for: the harness asks for the options alone, in an environment without TensorFlow.
_MODULES: Final = {"DaemonOptions": "tfdata.options", "TfDataLoader": "tfdata.loader"}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"loaders.{_MODULES[name]}"), name)
