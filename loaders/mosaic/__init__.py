"""MosaicML Streaming beside the other loaders: MDS shards in an object store, read by its own StreamingDataset.

The package `mosaicml-streaming` is imported only by the processes that need it, in the environment `mosaic`.
"""

from __future__ import annotations

from loaders.mosaic.loader import MosaicLoader
from loaders.mosaic.mds import FORM, prepare
from loaders.mosaic.options import ENVIRONMENT, DaemonOptions
from loaders.shared.objects.keys import make_keys

__all__ = ["ENVIRONMENT", "FORM", "DaemonOptions", "MosaicLoader", "make_keys", "prepare"]
