"""The position in an epoch: which places of a rank's sequence were delivered, kept over a restart.

A place is a record's number in the rank's planned sequence. It depends on neither batch size nor daemons, so that
both may be others when the epoch is resumed. What all ranks together delivered is known from the states of all of them;
another number of ranks shares the rest.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from loaders.errors import LoaderConfigError
from loaders.records.planner import EpochPlan, count_share, list_share

StateDict: TypeAlias = dict[str, Any]
"""Numbers, text and bytes by name, as `torch.save` keeps them."""
RankState: TypeAlias = Mapping[str, Any]
"""A StateDict of one rank, as it is read."""
State: TypeAlias = RankState | Sequence[RankState]
"""The state of one rank, or the list of those of all ranks."""

_VERSIONS = (1, 2)
"""Of states; the second one has the records that were delivered before the ranks shared the epoch again."""
_OF_RANKS = ("rank", "world_size", "remainder")
"""Settings that may change when the states of all ranks are given."""

_Marks: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The delivered records of an epoch."""

    epoch: int
    delivered: _Marks
    """Per place of the rank's sequence, shape (records,)."""
    before: _Marks | None = None
    """Places of the epoch of all ranks that other ranks delivered before these shared the rest; None: no place."""

    @classmethod
    def start(cls, plan: EpochPlan, records: int, before: _Marks | None = None) -> Checkpoint:
        """Return the start of a plan of some of a rank's `records`; the others are delivered."""
        delivered = np.ones(records, np.bool_)
        delivered[plan.list_positions(plan.number, len(plan))] = False
        return cls(plan.epoch, delivered, before)

    @property
    def complete(self) -> bool:
        """Whether every record was delivered."""
        return bool(self.delivered.all())

    def left(self, plan: EpochPlan) -> EpochPlan:
        """Return the undelivered rest of a whole epoch."""
        return plan.exclude(self.delivered, number=-(-int(self.delivered.sum()) // plan.batch_size))

    def state(self, settings: RankState) -> StateDict:
        """Return this as numbers, text and bytes, with the settings by which the epoch was planned."""
        state = {
            "version": 1,
            "settings": dict(settings),
            "epoch": self.epoch,
            "records": len(self.delivered),
            "delivered": _pack_marks(self.delivered),
        }
        if self.before is not None:
            state |= {"version": 2, "total": len(self.before), "before": _pack_marks(self.before)}
        return state

    @classmethod
    def of(cls, state: State, settings: RankState, total: int) -> Checkpoint:
        """Read the result of `state`, for this rank or for all ranks, of an epoch of `total` records.

        Raises LoaderConfigError naming a setting that differs, or a rank whose state is missing.
        """
        if isinstance(state, Mapping):
            own = _State.of(state, settings)
            was = own.settings
            if any(was.get(name) != settings.get(name) for name in _OF_RANKS):
                if was.get("world_size") == 1:
                    return _share_rest([own], settings, total)
                raise LoaderConfigError(
                    f"the checkpoint is of rank {was.get('rank')} of {was.get('world_size')} with "
                    f"remainder={was.get('remainder')}, and this is rank {settings['rank']} of "
                    f"{settings['world_size']} with remainder={settings['remainder']}: what the other ranks delivered "
                    "is not in it; give load_state_dict a list of the states of all ranks"
                )
            return own.progress()
        return _share_rest([_State.of(each, settings) for each in state], settings, total)


def make_ended_state(share: RankState, epoch: int, *, delivered: bool) -> StateDict:
    """Return the state of a rank that has delivered all of its epoch, or nothing; `share` is its settings' part."""
    return {"version": 1, "settings": dict(share), "epoch": epoch, "records": 0, "delivered": delivered}


@dataclass(frozen=True, slots=True)
class _State:
    """A state as it was read."""

    settings: RankState
    epoch: int
    delivered: _Marks | bool
    """Per place of the rank's sequence, or the same for all of them."""
    before: _Marks | None

    @classmethod
    def of(cls, state: RankState, settings: RankState) -> _State:
        try:
            version, before = state["version"], dict(state["settings"])
            epoch, records, marks = int(state["epoch"]), int(state["records"]), state["delivered"]
            earlier = (state["before"], int(state["total"])) if version == 2 else None
        except (KeyError, TypeError, ValueError) as error:
            raise LoaderConfigError(f"the checkpoint is not one of a streaming loader: {error!r}") from error
        if version not in _VERSIONS:
            raise LoaderConfigError(
                f"the checkpoint has version {version!r}: this package reads versions {_VERSIONS[0]} to {_VERSIONS[-1]}"
            )
        if isinstance(marks, bool):
            return cls(before, epoch, marks, None)
        if before.get("catalog") != settings.get("catalog"):
            raise LoaderConfigError(
                f"the checkpoint is of other data (fingerprint {before.get('catalog')}) than the daemons serve "
                f"({settings.get('catalog')}), so the epoch cannot be resumed: serve the data that it began with, or "
                "begin it again"
            )
        for name, value in settings.items():
            if name not in _OF_RANKS and before.get(name) != value:
                raise LoaderConfigError(
                    f"{name} was {before.get(name)!r} when the checkpoint was made and is {value!r} now: "
                    f"the order of samples depends on it, so the epoch cannot be resumed: give {name}="
                    f"{before.get(name)!r}"
                )
        return cls(before, epoch, _unpack_marks(marks, records), None if earlier is None else _unpack_marks(*earlier))

    def progress(self) -> Checkpoint:
        assert not isinstance(self.delivered, bool), "a state of one rank has marks"
        return Checkpoint(self.epoch, self.delivered, self.before)


def _share_rest(states: Sequence[_State], settings: RankState, total: int) -> Checkpoint:
    """Return where a rank begins with its share of what all ranks together have not delivered."""
    ranks = sorted(int(state.settings["rank"]) for state in states)
    shares = {tuple(state.settings[name] for name in _OF_RANKS[1:]) for state in states}
    epochs = {state.epoch for state in states}
    if len(shares) != 1 or len(epochs) != 1:
        raise LoaderConfigError(
            f"the states are of several runs or epochs: (world_size, remainder) {sorted(shares, key=str)}, epochs "
            f"{sorted(epochs)}; give those that all ranks saved at the same step"
        )
    ((world_size, remainder),) = shares
    if ranks != list(range(world_size)):
        raise LoaderConfigError(f"the states are of the ranks {ranks}: expected one of each of {world_size} ranks")
    marked = [state for state in states if not isinstance(state.delivered, bool)]
    before = marked[0].before if marked else None
    if any(not _same(state.before, before) for state in marked):
        raise LoaderConfigError("the states are of several runs: they differ in the records that were delivered before")
    done = np.zeros(total, np.bool_) if before is None else before.copy()
    if len(done) != total:
        raise LoaderConfigError(f"the checkpoint is damaged: marks for {len(done)} of {total} records")
    shared = np.flatnonzero(~done)
    unchanged = (world_size, remainder) == (settings["world_size"], settings["remainder"])
    for state in states:
        places = list_share(len(shared), rank=state.settings["rank"], world_size=world_size, remainder=remainder)
        marks = np.full(len(places), state.delivered) if isinstance(state.delivered, bool) else state.delivered
        if len(marks) != len(places):
            raise LoaderConfigError(f"the checkpoint is damaged: {len(marks)} marks for {len(places)} records")
        if unchanged and state.settings["rank"] == settings["rank"]:
            return Checkpoint(state.epoch, marks, before)
        done[shared[places[marks]]] = True
    left = count_share(
        total - int(done.sum()),
        rank=settings["rank"],
        world_size=settings["world_size"],
        remainder=settings["remainder"],
        limit=None,
    )
    return Checkpoint(epochs.pop(), np.zeros(left, np.bool_), done)


def _same(one: _Marks | None, other: _Marks | None) -> bool:
    return one is other or (one is not None and other is not None and np.array_equal(one, other))


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
