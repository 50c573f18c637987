"""Checks of numbers that callers give, so that one of a wrong kind is refused by its name."""

from __future__ import annotations

import math
import operator
from typing import Any, Final, Literal, TypeAlias, get_args

from loaders.errors import LoaderConfigError

__all__ = ["Remainder", "check_ranks", "seconds", "whole"]

Remainder: TypeAlias = Literal["uneven", "drop", "pad"]
"""What becomes of records that cannot be shared equally: some ranks get one more, none does, or some come twice."""
_MAX_S: Final = 1e6
"""The longest that poll(2) can wait is about twice as long."""


def whole(name: str, value: Any, least: int, most: int = 2**63 - 1) -> int:
    """Return an argument that has to be a whole number; raises LoaderConfigError naming it and its range."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or not least <= number <= most:
        bounds = f"that is {least} or more" if most == 2**63 - 1 else f"from {least} to {most}"
        raise LoaderConfigError(f"{name}={value!r}: expected a whole number {bounds}")
    return number


def seconds(name: str, value: Any) -> float:
    """Return an argument that has to be a time above 0 s; raises LoaderConfigError naming it."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _MAX_S or math.isnan(value):
        raise LoaderConfigError(f"{name}={value!r}: expected seconds above 0, at most {_MAX_S:g}")
    return float(value)


def check_ranks(rank: int, world_size: int, remainder: str | None) -> None:
    """Raise LoaderConfigError for a rank that there is none of, and where it is not said what becomes of a rest."""
    whole("rank", rank, 0, whole("world_size", world_size, 1) - 1)
    if remainder not in (None, *get_args(Remainder)):
        raise LoaderConfigError(f"remainder={remainder!r}: expected uneven, drop or pad")
    if remainder is None and world_size > 1:
        raise LoaderConfigError(
            f"remainder: choose uneven, drop or pad for {world_size} ranks; DDP needs equal counts, so drop or pad; "
            "rank=0, world_size=1 gives a rank all samples"
        )
