"""Checks of single arguments, which raise an error that names the argument."""

from __future__ import annotations

import math
import operator
from typing import Final, get_args

from loaders.errors import LoaderConfigError

__all__ = ["check_choice", "check_seconds", "check_whole"]

_MAX_WHOLE: Final = 2**63 - 1
_MAX_S: Final = 1e6
"""Half of the longest time that poll(2) can wait."""


def check_whole(name: str, value: object, minimum: int, maximum: int = _MAX_WHOLE) -> int:
    """Return an argument that has to be a whole number; raise LoaderConfigError naming it and its range."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or not minimum <= number <= maximum:
        bounds = f"that is {minimum} or more" if maximum == _MAX_WHOLE else f"from {minimum} to {maximum}"
        raise LoaderConfigError(f"{name}={value!r}: expected a whole number {bounds}")
    return number


def check_seconds(name: str, value: object) -> float:
    """Return an argument that has to be a time above 0 s; raise LoaderConfigError naming it."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _MAX_S or math.isnan(value):
        raise LoaderConfigError(f"{name}={value!r}: expected seconds above 0, at most {_MAX_S:g}")
    return float(value)


def check_choice(name: str, value: object, choices: object) -> None:
    """Raise LoaderConfigError for an argument that is not one of the values of a Literal type."""
    known = get_args(choices)
    if value not in known:
        raise LoaderConfigError(f"{name}={value!r}: expected one of {', '.join(known)}")
