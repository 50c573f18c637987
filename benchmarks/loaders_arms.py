"""What the loaders' benchmark compares: our loaders, plain scripts of their engines, and bounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import numpy as np
from loaders_plain import Epoch, bare_spdl, documented_spdl, documented_spdl_io, plain_dali, plain_pytorch

from loaders.base import Samples

ENGINES = ("pytorch", "dali", "spdl", "spdl_io")
BOUNDS = ("reading", "fixed")


@contextmanager
def _ours(engine: str, samples: Samples, workers: int, batch_size: int) -> Iterator[Epoch]:
    """Load through this project's loader of the name."""
    import torch

    from loaders import DaliLoader, ImageTransform, PyTorchLoader, SpdlLoader
    from loaders.fixed import FixedBatchLoader

    torch.set_num_threads(1)
    common: dict[str, Any] = {"samples": samples, "transform": ImageTransform(), "batch_size": batch_size, "seed": 0}
    loader: Any
    match engine:
        case "pytorch":
            loader = PyTorchLoader(num_workers=workers, **common)
        case "dali":
            loader = DaliLoader(num_threads=workers, **common)
        case "spdl":
            loader = SpdlLoader(num_threads=workers, **common)
        case "spdl_io":
            loader = SpdlLoader(num_threads=workers, decode="spdl", **common)
        case "fixed":
            loader = FixedBatchLoader(**common)
        case other:
            raise ValueError(other)
    with loader:
        yield lambda number: (len(batch) for batch in loader.epoch(number))


@contextmanager
def _reading(samples: Samples, _workers: int, batch_size: int) -> Iterator[Epoch]:
    """Read the files and decode nothing: what no loader of files can be faster than."""

    def epoch(number: int) -> Iterator[int]:
        order = np.random.default_rng(number).permutation(len(samples)).tolist()
        for start in range(0, len(order), batch_size):
            yield sum(len(samples.path(sample_id).read_bytes()) > 0 for sample_id in order[start : start + batch_size])

    yield epoch


ARMS: dict[str, Callable[[Samples, int, int], AbstractContextManager[Epoch]]] = {
    **{f"ours {engine}": partial(_ours, engine) for engine in ENGINES},
    "bare pytorch": partial(plain_pytorch, "bare"),
    "bare dali": partial(plain_dali, "bare"),
    "bare spdl": partial(bare_spdl, "pil"),
    "bare spdl_io": partial(bare_spdl, "spdl"),
    "documented pytorch": partial(plain_pytorch, "documented"),
    "documented dali": partial(plain_dali, "documented"),
    "documented spdl": documented_spdl,
    "documented spdl_io": documented_spdl_io,
    "reading": _reading,
    "fixed": partial(_ours, "fixed"),
}
"""What opens an arm for so many workers and a batch size, by its name."""
