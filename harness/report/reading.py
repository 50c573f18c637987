"""Files that a run stored: read with every kind of damage as one error that names the file and what to do."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from harness.errors import ConfigError, HarnessError, ResultsError

__all__ = ["CELL", "COLLECT", "mapping", "read_json", "reading"]

CELL: Final = "resume the run, which measures its cell again"
COLLECT: Final = "python -m harness.collect writes it again"
"""What to do about a damaged file of a cell, and about one that is made of the cells' files."""

_DAMAGE: Final = (
    *(OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError),
    *(csv.Error, YAMLError, OmegaConfBaseException, pa.ArrowException),
)
"""What reading a damaged file, or using the values in it, raises."""


@contextmanager
def reading(path: Path, remedy: str) -> Iterator[None]:
    """Raise ResultsError, which names the file and ends with `remedy`, where what it holds cannot be used."""
    try:
        yield
    except ConfigError as error:
        raise ResultsError(f"{path}: {error}; {remedy}") from error
    except HarnessError:
        raise
    except _DAMAGE as error:
        why = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else " ".join(str(error).split())
        if path.is_file() and not path.stat().st_size:
            why = "it is empty"
        raise ResultsError(f"{path}: cannot be read ({why}); {remedy}") from error


def mapping(value: object, what: str) -> Mapping[str, Any]:
    """Return keys and values, none where `value` is None; raises TypeError naming what it is where it is no mapping."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise TypeError(f"{what}: expected keys and values, got {value!r:.60}")
    return value


def read_json(path: Path, kind: type) -> Any:
    """Return a JSON file's value; NaN, which is no number, is None. Raises TypeError where it is not of `kind`."""
    value = json.loads(path.read_text(encoding="utf-8"), parse_constant=lambda _: None)
    if not isinstance(value, kind):
        raise TypeError(f"expected {'a list' if kind is list else 'keys and values'}, got {value!r:.60}")
    return value
