"""Checks of values that the config gives to datasets and workloads; each raises ConfigError with the key."""

from __future__ import annotations

import math
import re
from typing import cast

from harness.errors import ConfigError

__all__ = ["check_choice", "check_count", "check_name", "check_number"]


def check_name(key: str, name: str) -> None:
    """Raise ConfigError for a name that cannot be part of a folder's name."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name):
        raise ConfigError(f"{key}={name!r}: expected up to 64 letters, digits, '.', '_' and '-'")


def check_count(key: str, value: object, *, minimum: int = 1, maximum: int | None = None) -> None:
    """Raise ConfigError for anything but a whole number within its bounds."""
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if is_whole and minimum <= cast(int, value) <= (math.inf if maximum is None else maximum):
        return
    upper = "or more" if maximum is None else f"to {maximum}"
    raise ConfigError(f"{key}={value!r}: expected a whole number, {minimum} {upper}")


def check_number(
    key: str,
    value: object,
    *,
    minimum: float = 0.0,
    above: float | None = None,
    maximum: float = math.inf,
    unit: str = "",
) -> float:
    """Return a finite number from `minimum`, or above `above`, to `maximum`; raise ConfigError for anything else."""
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        number = float(value)
        if (number >= minimum if above is None else number > above) and number <= maximum:
            return number
    if above is None:
        bounds = f"{minimum:g} or more" if math.isinf(maximum) else f"{minimum:g} to {maximum:g}"
    else:
        bounds = f"above {above:g}" if math.isinf(maximum) else f"above {above:g}, up to {maximum:g}"
    raise ConfigError(f"{key}={value!r}: expected a number{unit and f' of {unit}'}, {bounds}")


def check_choice(key: str, value: object, choices: tuple[str, ...]) -> None:
    """Raise ConfigError for a value that is not one of the choices."""
    if value not in choices:
        raise ConfigError(f"{key}={value!r}: expected one of {', '.join(choices)}")
