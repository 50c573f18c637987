"""Which boards count: all of a host, those that CUDA lets a program see, or those that are named."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from energymon.errors import OptionError

ALL: Final = "all"
VISIBLE: Final = "visible"
UNCOUNTED: Final = "gpus"
"""Stands for boards whose number is not known."""
_SEEN: Final = "CUDA_VISIBLE_DEVICES"
_ORDER: Final = "CUDA_DEVICE_ORDER"
CUDA: Final = (_SEEN, _ORDER)
"""The variables of a program that say which boards it sees."""
_NONE: Final = ("", "-1", "NoDevFiles")
_SLICE: Final = "MIG-"


class Board(NamedTuple):
    """A board as its sensor describes it."""

    device: str
    """gpu- and NVML's index."""
    uuid: str = ""
    """"" for a board that cannot be read."""
    model: str = ""
    slices: Sequence[str] | None = None
    """UUIDs of its slices in MIG mode; None outside that mode."""
    is_sampled: bool = True
    """False where --boards leaves it out."""


def boards_of(description: Mapping[str, Any]) -> list[Board]:
    """Return the boards of an agent or a meter, as its description names them, those that are not read too."""
    read = [
        Board(one["channels"][0]["device"], one["uuid"], one["model"], one.get("slices"))
        for one in description.get("sensors") or ()
        if one.get("uuid")
    ]
    gaps = description.get("unreadable") or ()
    read += [Board(gap["device"]) for gap in gaps if gap["domain"] == "gpu"]
    return read + [Board(**one) for one in description.get("unsampled") or ()]


def choose_boards(choice: str, boards: Sequence[Board], environment: Mapping[str, str]) -> frozenset[str] | None:
    """Return those of a host's boards that count, as devices; None for all.

    `choice` is ALL; VISIBLE, what CUDA_VISIBLE_DEVICES of the program's environment names; or indices of NVML and
    UUIDs, joined by commas. The UUID of a slice stands for its board. Raises OptionError for a name that is no board's
    or of which nobody knows whose it is, and for a board that is not sampled.
    """
    sees = choice == VISIBLE
    if choice == ALL or (sees and _SEEN not in environment) or not boards:
        return None
    text = environment[_SEEN] if sees else choice
    which = f"{_SEEN}={text}" if sees else "the choice of boards"
    names = [name.strip() for name in text.split(",")]
    in_order = not sees or environment.get(_ORDER) == "PCI_BUS_ID"
    if not in_order and any(map(str.isdecimal, names)) and len({board.model for board in boards if board.uuid}) > 1:
        raise OptionError(
            f"{_SEEN}={text} counts boards from the fastest one, which NVML does not know on a host of several models: "
            f"set {_ORDER}=PCI_BUS_ID, or name boards by UUID"
        )
    found: set[str] = set()
    for name in names:
        named = _named(name, boards)
        may_be_unread = not name.isdecimal() and any(not board.uuid for board in boards)
        if sees and (name in _NONE or not (named or name.startswith(_SLICE) or may_be_unread)):
            # CUDA sees nothing from the first name on that is wrong.
            break
        if len(named) != 1:
            there = ", ".join(f"{board.device} ({board.uuid or 'cannot be read'})" for board in boards)
            raise OptionError(f"{which}: {name!r} names {len(named) or 'none'} of {there}; expected one")
        found |= named
    if left_out := ", ".join(board.device for board in boards if board.device in found and not board.is_sampled):
        raise OptionError(f"{which} means {left_out}, which --boards left out: have it sampled, or choose others")
    return frozenset(found)


def _named(name: str, boards: Sequence[Board]) -> set[str]:
    """Return the devices that have an index, a UUID that begins so, or such a slice."""
    # The older name of a slice is MIG-GPU-UUID/INSTANCE/INSTANCE.
    uuid = name.removeprefix(_SLICE if name.startswith(f"{_SLICE}GPU-") else "").partition("/")[0]
    found = {
        board.device
        for board in boards
        if board.device in (f"gpu-{name}", UNCOUNTED)
        or (len(uuid) > len(_SLICE) and any(one.startswith(uuid) for one in (board.uuid, *(board.slices or ()))))
    }
    if not found and name.startswith(_SLICE):
        # A slice that was made after its board was opened.
        return {board.device for board in boards if board.slices is not None}
    return found


def name_boards(boards: Iterable[Board], counted: frozenset[str]) -> str:
    """Return a sentence that says which boards a figure is of."""
    these = ", ".join(f"{one.device} ({one.uuid})" for one in boards if one.device in counted) or "none"
    others = ", ".join(one.device for one in boards if one.device not in counted)
    return f"counted: {these}" + (f"; not counted: {others}" if others else "")
