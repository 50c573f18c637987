"""Checks of what the config gives a dataset."""

from __future__ import annotations

import math
import re

from harness.errors import ConfigError

__all__ = ["check_count", "check_name", "check_number"]


def check_name(name: str) -> str:
    """Return a dataset's name if it can be part of a folder's name, else raise ConfigError."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name):
        raise ConfigError(f"dataset.name={name!r}: expected up to 64 letters, digits, '.', '_' and '-'")
    return name


def check_count(key: str, value: int, *, least: int = 1, most: int | None = None) -> int:
    """Return a whole number within its bounds, else raise ConfigError naming the key."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (most is not None and value > most):
        upper = "or more" if most is None else f"to {most}"
        raise ConfigError(f"dataset.{key}={value!r}: expected a whole number, {least} {upper}")
    return value


def check_number(key: str, value: float, *, least: float, most: float, unit: str = "") -> float:
    """Return a finite number within its bounds, else raise ConfigError naming the key."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ConfigError(f"dataset.{key}={value!r}: expected a number{unit and f' of {unit}'}")
    if not least <= value <= most:
        raise ConfigError(f"dataset.{key}={value:g}: expected {least:g} to {most:g}{unit and f' {unit}'}")
    return float(value)
