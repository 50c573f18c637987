"""PyTorch's DataLoader with AutoOrder before it: the order of transforms is chosen once, from a few samples."""

from __future__ import annotations

import time
from typing import Any

from loaders.base import Samples
from loaders.pecan.choice import PecanOptions, choose_order, notes_of
from loaders.pecan.order import TransformOrder
from loaders.pecan.reorder import reorder
from loaders.pipeline.callables import AnyTransform, as_pipeline
from loaders.pytorch.loader import TorchLoader
from loaders.shared.options import takes_options


class PecanLoader(TorchLoader):
    """Runs a pipeline whose transforms are in Pecan's order in DataLoader workers (MinatoLoader paper, section 5.1)."""

    notes: tuple[str, ...]
    """The order and what led to it, transform by transform."""
    order: TransformOrder
    """The same as data; its str() is the table that is logged."""

    @takes_options(PecanOptions)
    def __init__(self, *, samples: Samples, transform: AnyTransform, **keywords: Any) -> None:
        """Measure some samples, choose the order, log it; raise LoaderConfigError.

        `stats` has `profile_s`, the seconds that it took to choose the order.

        Args:
            samples: the files.
            transform: a pipeline, or a callable on the decoded sample.
        """
        options, pipeline = PecanOptions(**keywords), as_pipeline(transform)
        began = time.perf_counter_ns()
        self.order = choose_order(pipeline, samples, options)
        self.notes = notes_of(self.order)
        super().__init__(samples, reorder(pipeline, self.order), options)
        self._stats.details["profile_s"] = (time.perf_counter_ns() - began) * 1e-9
