"""tf.data service: TensorFlow's dispatcher and workers on the storage node, batches of records on a compute node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from loaders.shared.lazy import lazy_names

if TYPE_CHECKING:
    from loaders.tfdata.loader import TfDataLoader
    from loaders.tfdata.options import DaemonOptions

__all__ = ["ENVIRONMENT", "DaemonOptions", "TfDataLoader"]

ENVIRONMENT: Final = "tensorflow"
"""The environment in which daemon and loader run: playbooks/tensorflow.sh makes it."""

# Imported when asked for: the harness asks for the options alone, in an environment without TensorFlow.
__getattr__ = lazy_names(__name__, {"DaemonOptions": "tfdata.options", "TfDataLoader": "tfdata.loader"})
