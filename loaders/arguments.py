"""Checks of numbers that callers give, so that one of a wrong kind is refused by its name."""

from __future__ import annotations

import math
import operator
from typing import Any

from loaders.errors import LoaderConfigError

__all__ = ["seconds", "whole"]

_MAX_S = 1e6
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
