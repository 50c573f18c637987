"""Checks of single arguments and values; True and False are no numbers."""

from __future__ import annotations

import math
import operator
import sys
from typing import Final, get_args

from loaders.errors import LoaderConfigError

_MAX_WHOLE: Final = 2**63 - 1
_MAX_S: Final = 1e6
"""Half of the longest time that poll(2) can wait."""


def as_whole(value: object, minimum: int = 0, maximum: int = _MAX_WHOLE) -> int | None:
    """Return a whole number within its bounds; None for anything else, True and 1.0 among them."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None
    return None if isinstance(value, bool) or not minimum <= number <= maximum else number


def as_number(value: object, minimum: float = -math.inf, maximum: float = math.inf) -> float | None:
    """Return a finite number within its bounds; None for anything else, True and text among them."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if minimum <= value <= maximum and abs(value) <= sys.float_info.max else None


def check_whole(name: str, value: object, minimum: int, maximum: int = _MAX_WHOLE) -> int:
    """Return an argument that has to be a whole number; raise LoaderConfigError naming it and its range."""
    number = as_whole(value, minimum, maximum)
    if number is None:
        bounds = f"that is {minimum} or more" if maximum == _MAX_WHOLE else f"from {minimum} to {maximum}"
        raise LoaderConfigError(f"{name}={value!r}: expected a whole number {bounds}")
    return number


def check_seconds(name: str, value: object) -> float:
    """Return an argument that has to be a time above 0 s; raise LoaderConfigError naming it."""
    seconds = as_number(value, 0, _MAX_S)
    if not seconds:
        raise LoaderConfigError(f"{name}={value!r}: expected seconds above 0, at most {_MAX_S:g}")
    return seconds


def check_choice(name: str, value: object, choices: object) -> None:
    """Raise LoaderConfigError for an argument that is not one of the values of a Literal type."""
    known = get_args(choices)
    if value not in known:
        raise LoaderConfigError(f"{name}={value!r}: expected one of {', '.join(known)}")
