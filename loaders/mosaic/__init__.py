"""MosaicML Streaming beside the other loaders: MDS shards in an object store, read by its own StreamingDataset.

The package `mosaicml-streaming` is imported only by the processes that need it, in the environment `mosaic`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from loaders.shared.lazy import lazy_names

if TYPE_CHECKING:
    from loaders.mosaic.keys import make_keys
    from loaders.mosaic.loader import MosaicLoader
    from loaders.mosaic.mds import FORM, prepare
    from loaders.mosaic.options import ENVIRONMENT, SERVER, DaemonOptions

__all__ = ["ENVIRONMENT", "FORM", "SERVER", "DaemonOptions", "MosaicLoader", "make_keys", "prepare"]

# Imported when asked for: the daemon has no use for torch, which takes seconds to import.
__getattr__ = lazy_names(
    __name__,
    {
        "ENVIRONMENT": "mosaic.options",
        "FORM": "mosaic.mds",
        "SERVER": "mosaic.options",
        "DaemonOptions": "mosaic.options",
        "MosaicLoader": "mosaic.loader",
        "make_keys": "mosaic.keys",
        "prepare": "mosaic.mds",
    },
)
