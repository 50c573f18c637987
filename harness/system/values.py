"""Checks of values that the config gives to datasets and workloads; each raises ConfigError with the key."""

from __future__ import annotations

import math
import re
import sys

from harness.errors import ConfigError
from loaders.shared.options import as_number, as_whole


def check_name(key: str, name: str) -> None:
    """Raise ConfigError for a name that cannot be part of a folder's name."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name):
        raise ConfigError(f"{key}={name!r}: expected up to 64 letters, digits, '.', '_' and '-'")


def check_count(key: str, value: object, *, minimum: int = 1, maximum: int | None = None) -> None:
    """Raise ConfigError for anything but a whole number within its bounds."""
    if as_whole(value, minimum, sys.maxsize if maximum is None else maximum) is None:
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
    number = as_number(value, minimum if above is None else above, maximum)
    if number is not None and number != above:
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
