"""Files of a run: written whole or not at all, and read with one error that names a damaged file and the remedy."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import pyarrow as pa
from omegaconf.errors import OmegaConfBaseException
from pydantic import TypeAdapter, ValidationError
from yaml import YAMLError

from harness.errors import ConfigError, ResultsError

T = TypeVar("T")

RUN: Final = "restore it, or measure again"
CELL: Final = "resume the run, which measures its cell again"
COLLECT: Final = "python -m harness.validate --write FOLDER writes it again"
"""Remedies for a damaged file: of the run, of a cell, and one that is made from the cells' files."""

_DAMAGE: Final = (
    *(OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError),
    *(YAMLError, OmegaConfBaseException, pa.ArrowException),
)
"""What reading a damaged file, or using the values in it, raises."""
_ADAPTERS: Final[dict[object, TypeAdapter[Any]]] = {}


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that it is seen whole or not at all, even if two processes write it at the same time.

    Raises OSError.
    """
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: object) -> None:
    """Write plain data or a dataclass as indented JSON, whole or not at all. Raises OSError."""
    plain = _get_adapter(type(value)).dump_python(value, mode="json") if is_dataclass(value) else value
    write_whole(path, (json.dumps(plain, indent=2, default=str) + "\n").encode())


def read_json(path: Path, kind: type[T], remedy: str) -> T:
    """Return a JSON file as a value of `kind`: a dataclass, or a type such as dict[str, int]. NaN becomes None.

    Raises ResultsError, which names the file and ends with `remedy`, for a file that is missing or damaged.
    """
    with refuse_damage(path, remedy):
        plain = json.loads(path.read_text(encoding="utf-8"), parse_constant=lambda _: None)
        return _get_adapter(kind).validate_json(json.dumps(plain), strict=True)


def parse_value(kind: type[T], value: object) -> T:
    """Return plain data as a value of `kind`. Raises ValueError, which names the key of another type."""
    return _get_adapter(kind).validate_python(value)


def _get_adapter(kind: type[T]) -> TypeAdapter[T]:
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]


@contextmanager
def refuse_damage(path: Path, remedy: str) -> Iterator[None]:
    """Raise ResultsError, which names the file and ends with `remedy`, where its content cannot be used."""
    try:
        yield
    except ConfigError as error:
        raise ResultsError(f"{path}: {error}; {remedy}") from error
    except _DAMAGE as error:
        if path.is_file() and not path.stat().st_size:
            why = "it is empty"
        elif isinstance(error, ValidationError):
            first = error.errors(include_url=False)[0]
            why = f"{'.'.join(map(str, first['loc']))}: {first['msg']}, got {first['input']!r:.60}"
        elif isinstance(error, KeyError):
            why = f"{error.args[0]!r} is missing"
        elif isinstance(error, OSError):
            why = error.strerror or str(error)
        else:
            why = " ".join(str(error).split())
        raise ResultsError(f"{path}: cannot be read ({why}); {remedy}") from error
