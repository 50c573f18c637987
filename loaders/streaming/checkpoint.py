"""The position in an epoch: which of its records a rank has delivered, kept over a restart.

A record's place is its number in the planned sequence of all ranks. It depends on neither batch size nor daemons, so
that both may be others when the epoch is resumed. The states of all ranks together name the delivered records; another
number of ranks shares the rest.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from loaders.errors import LoaderConfigError

StateDict: TypeAlias = dict[str, Any]
"""Numbers, text and bytes by name, as `torch.save` keeps them."""
RankState: TypeAlias = Mapping[str, Any]
"""A StateDict of one rank, as it is read."""
AnyState: TypeAlias = RankState | Sequence[RankState]
"""The state of one rank, or the list of the states of all ranks."""

_VERSION = 3
_OF_RANKS = ("rank", "world_size", "remainder")
"""Settings that may change when the states of all ranks are given."""

_Marks: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The delivered records of an epoch, by their places in it, shape (records of all ranks,)."""

    epoch: int
    delivered: _Marks
    """By this rank."""
    before: _Marks
    """By all ranks, before these ranks shared the rest."""

    @classmethod
    def start(cls, epoch: int, records: int) -> Checkpoint:
        """Return the beginning of an epoch of so many records."""
        return cls(epoch, np.zeros(records, np.bool_), np.zeros(records, np.bool_))

    def state(self, settings: RankState, *, is_complete: bool) -> StateDict:
        """Return this as numbers, text and bytes, with the settings by which the epoch was planned."""
        return {
            "version": _VERSION,
            "settings": dict(settings),
            "epoch": self.epoch,
            "is_complete": is_complete,
            "delivered": _pack_marks(self.delivered),
            "before": _pack_marks(self.before),
        }

    @classmethod
    def of(cls, state: AnyState, settings: RankState, records: int) -> Checkpoint:
        """Read the result of `state`, of this rank or of all ranks, of an epoch of so many records.

        Raises LoaderConfigError naming a setting that differs, or the ranks whose states are missing.
        """
        states = [state] if isinstance(state, Mapping) else list(state)
        read = [_read(each, settings, records) for each in states]
        shares = [tuple(each["settings"][name] for name in _OF_RANKS) for each in states]
        own = tuple(settings[name] for name in _OF_RANKS)
        if len(states) == 1 and shares[0] == own:
            return read[0]
        epochs = sorted({each.epoch for each in read})
        world_size = shares[0][1] if shares else 0
        is_same_run = all(np.array_equal(each.before, read[0].before) for each in read)
        if len({share[1:] for share in shares}) != 1 or len(epochs) != 1 or not is_same_run:
            raise LoaderConfigError(
                f"the states are of several runs or epochs: (rank, world_size, remainder) {shares}, epochs {epochs}; "
                "give those that all ranks saved at the same step"
            )
        if sorted(share[0] for share in shares) != list(range(world_size)):
            raise LoaderConfigError(
                f"the states are of the ranks {[share[0] for share in shares]} of {world_size}, and this is rank "
                f"{own[0]} of {own[1]} with remainder={own[2]}: give load_state_dict a list of the states of all ranks"
            )
        if own in shares:
            return read[shares.index(own)]
        done = np.logical_or.reduce([read[0].before, *(each.delivered for each in read)])
        return cls(epochs[0], np.zeros(records, np.bool_), done)


def has_ended(state: AnyState) -> bool:
    """Return whether the rank, or every rank, has delivered its part of the epoch."""
    return all(each["is_complete"] for each in ([state] if isinstance(state, Mapping) else state))


def _read(state: RankState, settings: RankState, records: int) -> Checkpoint:
    try:
        version, before, epoch = state["version"], dict(state["settings"]), int(state["epoch"])
        marks = state["delivered"], state["before"]
    except (KeyError, TypeError, ValueError) as error:
        raise LoaderConfigError(f"the checkpoint is not one of a streaming loader: {error!r}") from error
    if version != _VERSION:
        raise LoaderConfigError(f"the checkpoint has version {version!r}: this package reads version {_VERSION}")
    if before.get("catalog") != settings["catalog"]:
        raise LoaderConfigError(
            f"the checkpoint is of other data (fingerprint {before.get('catalog')}) than the daemons serve "
            f"({settings['catalog']}): serve the data that the epoch began with, or begin it again"
        )
    for name, value in settings.items():
        if name not in _OF_RANKS and before.get(name) != value:
            raise LoaderConfigError(
                f"{name} was {before.get(name)!r} when the checkpoint was made and is {value!r} now: the order of "
                f"samples depends on it; give {name}={before.get(name)!r}"
            )
    return Checkpoint(epoch, *(_unpack_marks(each, records) for each in marks))


def _pack_marks(marks: _Marks) -> bytes:
    return zlib.compress(np.packbits(marks).tobytes())


def _unpack_marks(marks: bytes, records: int) -> _Marks:
    try:
        packed = np.frombuffer(zlib.decompress(marks), np.uint8)
    except (zlib.error, TypeError) as error:
        raise LoaderConfigError(f"the checkpoint is damaged: {error}") from error
    if len(packed) != -(-records // 8):
        raise LoaderConfigError(f"the checkpoint is damaged: {len(packed)} bytes of marks for {records} records")
    return np.unpackbits(packed, count=records).astype(np.bool_)
