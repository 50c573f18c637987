"""No training at all: batches are taken as fast as they come."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from harness.workloads.published import BoardPower
    from loaders.base import Batch

__all__ = ["NoStep"]


class NoStep:
    """Takes a batch and returns, once it is on the device; measures a loader alone (SPDL, section 6.1)."""

    kind = "none"
    label = "none: no downstream load"
    emulated = False
    citation: str | None = None
    power: BoardPower | None = None

    def __init__(self) -> None:
        self.device = "cuda" if torch.cuda.is_available() else "cpu"

    def __call__(self, batch: Batch) -> None:
        """Wait until the batch has arrived, which is no step's doing but the loader's."""
        if self.device == "cuda":
            torch.cuda.synchronize()

    def warm_up(self) -> None:
        """Make the device's context."""
        if self.device == "cuda":
            torch.cuda.synchronize()
