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


def boards_of(description: Mapping[str, Any]) -> list[Board]:
    """Return the boards of an agent or a meter, as its description names them, those that cannot be read too."""
    read = [
        Board(one["channels"][0]["device"], one["uuid"], one["model"], one.get("slices"))
        for one in description.get("sensors") or ()
        if one.get("uuid")
    ]
    gaps = description.get("unreadable") or ()
    return read + [Board(gap["device"]) for gap in gaps if gap["domain"] == "gpu"]


def choose_boards(choice: str, boards: Sequence[Board], environment: Mapping[str, str]) -> frozenset[str] | None:
    """Return the devices that count; None for all.

    Args:
        choice: ALL; VISIBLE, what CUDA_VISIBLE_DEVICES of the environment names; or indices of NVML and UUIDs, joined
            by commas. The UUID of a slice stands for its board.
        boards: The boards of the host.
        environment: Of the program whose boards count.

    Raises:
        OptionError: A name is no board's, or nobody knows whose it is.
    """
    if choice == ALL or (choice == VISIBLE and _SEEN not in environment) or not boards:
        return None
    if choice != VISIBLE:
        return frozenset(_find(name.strip(), boards, "the choice of boards", whole=True) for name in choice.split(","))
    names = [name.strip() for name in environment[_SEEN].split(",")]
    in_order = environment.get(_ORDER) == "PCI_BUS_ID" or len({board.model for board in boards if board.uuid}) < 2
    if not in_order and any(name.isdecimal() for name in names):
        raise OptionError(
            f"{_SEEN}={environment[_SEEN]} counts boards from the fastest one, which NVML does not know on a host of "
            f"several models: set {_ORDER}=PCI_BUS_ID, or name boards by UUID"
        )
    found = set()
    for name in names if names[0] not in _NONE else ():
        device = _find(name, boards, f"{_SEEN}={environment[_SEEN]}", whole=False)
        if not device:
            # CUDA sees nothing from the first name on that is wrong.
            break
        found.add(device)
    return frozenset(found)


def _find(name: str, boards: Sequence[Board], where: str, *, whole: bool) -> str:
    """Return a board's device by an index or the begin of a UUID; "" where no board has it, unless all must be there.

    The older name of a slice is MIG-GPU-UUID/INSTANCE/INSTANCE.
    """
    of_board = name.removeprefix(_SLICE) if name.startswith(f"{_SLICE}GPU-") else name
    of_board = of_board.partition("/")[0]
    found = [
        board.device
        for board in boards
        if board.device in (f"gpu-{name}", UNCOUNTED)
        or (len(of_board) > len(_SLICE) and board.uuid.startswith(of_board))
        or (len(name) > len(_SLICE) and any(one.startswith(name) for one in board.slices or ()))
    ]
    if not found and name.startswith(_SLICE):
        # A slice that was made after the board was opened.
        found = [board.device for board in boards if board.slices is not None]
    unknown = not name.isdecimal() and any(not board.uuid for board in boards)
    if len(found) == 1:
        return found[0]
    if found or whole or unknown or name.startswith(_SLICE):
        there = ", ".join(f"{board.device} ({board.uuid or 'cannot be read'})" for board in boards)
        raise OptionError(f"{where}: {name!r} names {'several' if found else 'none'} of {there}; expected one")
    return ""


def name_boards(boards: Iterable[Board], counted: frozenset[str]) -> str:
    """Return a sentence that says which boards a figure is of."""
    these = ", ".join(f"{one.device} ({one.uuid})" for one in boards if one.device in counted) or "none"
    others = ", ".join(one.device for one in boards if one.device not in counted)
    return f"counted: {these}" + (f"; not counted: {others}" if others else "")
