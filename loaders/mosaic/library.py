"""Imports MosaicML Streaming, without the parts that nothing here uses."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from loaders.errors import LoaderConfigError


def import_streaming() -> Any:
    """Return the module streaming.base.dataset; raises LoaderConfigError where it is not installed.

    The package itself imports vision, text and transformers, which take three times as long as torch. Nothing of them
    is used: batches are collated here.
    """
    if "streaming" not in sys.modules:
        found = find_spec("streaming")
        if found is None or found.submodule_search_locations is None:
            raise LoaderConfigError(
                f"mosaicml-streaming is not installed for {sys.executable}: use the Python that playbooks/mosaic.sh "
                "prints, or environment: mosaic in the loader's section"
            )
        package, batches = ModuleType("streaming"), ModuleType("streaming.base.dataloader")
        package.__path__ = list(found.submodule_search_locations)
        batches.StreamingDataLoader = None  # type: ignore[attr-defined]
        sys.modules |= {package.__name__: package, batches.__name__: batches}
    import streaming.base.dataset

    return streaming.base.dataset


def name_shared_memory(prefix: str) -> None:
    """Begin the names of all shared memory with a prefix of this process.

    Without one, two runs on a host take the same names: each looks for a free number, and both find the same.
    """
    from streaming.base.shared import prefix as naming

    def name(number: int, what: str) -> str:
        return f"{prefix}-{number:06}_{what}"

    dataset = import_streaming()
    assert hasattr(naming, "_get_path") and hasattr(dataset, "_get_path"), "streaming.base.shared names it otherwise"
    naming._get_path = dataset._get_path = name
