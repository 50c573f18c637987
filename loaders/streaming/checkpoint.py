"""How far an epoch has come: which places of a rank's sequence were delivered, kept over a restart.

A place is a record's number in the rank's planned sequence. It depends on neither batch size nor daemons, so that
both may be others when the epoch is resumed.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from loaders.errors import LoaderConfigError
from loaders.streaming.planner import EpochPlan

__all__ = ["Progress"]

_VERSION = 1


@dataclass(frozen=True, slots=True)
class Progress:
    """What was delivered of an epoch."""

    epoch: int
    delivered: npt.NDArray[np.bool_]
    """Per place of the rank's sequence, shape (records,)."""

    @classmethod
    def none(cls, plan: EpochPlan) -> Progress:
        """Return the beginning of an epoch."""
        return cls(plan.epoch, np.zeros(plan.records, np.bool_))

    @property
    def complete(self) -> bool:
        """Whether every record was delivered."""
        return bool(self.delivered.all())

    def left(self, plan: EpochPlan) -> EpochPlan:
        """Return what was not delivered of a whole epoch."""
        return plan.without(self.delivered, number=-(-int(self.delivered.sum()) // plan.batch_size))

    def state(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return this as numbers, text and bytes, with the settings by which the epoch was planned."""
        marks = zlib.compress(np.packbits(self.delivered).tobytes())
        return {
            "version": _VERSION,
            "settings": dict(settings),
            "epoch": self.epoch,
            "records": len(self.delivered),
            "delivered": marks,
        }

    @classmethod
    def of(cls, state: Mapping[str, Any], settings: Mapping[str, Any]) -> Progress:
        """Read what `state` returned; raise LoaderConfigError naming a setting that was another one then."""
        try:
            version, before = state["version"], dict(state["settings"])
            epoch, records, marks = int(state["epoch"]), int(state["records"]), state["delivered"]
        except (KeyError, TypeError, ValueError) as error:
            raise LoaderConfigError(f"the checkpoint is not one of a streaming loader: {error!r}") from error
        if version != _VERSION:
            raise LoaderConfigError(f"the checkpoint has version {version!r}: this package reads version {_VERSION}")
        for name, value in settings.items():
            if before.get(name) != value:
                raise LoaderConfigError(
                    f"{name} was {before.get(name)!r} when the checkpoint was made and is {value!r} now: "
                    "the order of samples depends on it, so the epoch cannot be resumed"
                )
        try:
            packed = np.frombuffer(zlib.decompress(marks), np.uint8)
        except (zlib.error, TypeError) as error:
            raise LoaderConfigError(f"the checkpoint is damaged: {error}") from error
        if len(packed) != -(-records // 8):
            raise LoaderConfigError(f"the checkpoint is damaged: {len(packed)} bytes of marks for {records} records")
        return cls(epoch, np.unpackbits(packed, count=records).astype(np.bool_))
