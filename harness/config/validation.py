"""Sections of a config as pydantic models, and what a wrong key or value is refused with: one line that names it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Annotated, Final, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, ValidationError, WrapValidator
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from pydantic_core.core_schema import ValidatorFunctionWrapHandler

from harness.errors import ConfigError

_EXPECTED: Final = {
    "int_type": "a whole number",
    "float_type": "a number",
    "finite_number": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "string_too_short": "text",
    "greater_than": "a number above {gt}",
    "greater_than_equal": "a number that is {ge} or more",
    "less_than": "a number below {lt}",
    "less_than_equal": "at most {le}",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a section with keys",
    "mapping_type": "a section with keys",
}
"""What a value should have been, by pydantic's type of error. A field's own description goes before it."""


def _check_as_given(value: object, check: ValidatorFunctionWrapHandler) -> object:
    check(value)
    return value


def _write_as_given(value: object) -> object:
    return value


Number = Annotated[float, WrapValidator(_check_as_given), PlainSerializer(_write_as_given), Field(ge=0)]
"""A finite number from 0 on. It stays as it is written: 100 and 100.0 are two values to the id of a cell."""
NumberAboveZero = Annotated[float, WrapValidator(_check_as_given), PlainSerializer(_write_as_given), Field(gt=0)]


class Section(BaseModel):
    """A section of a config. A key that it does not have is refused, and so is a value of another type."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, populate_by_name=True)


S = TypeVar("S", bound=BaseModel)


def parse(model: type[S], section: object, where: str = "") -> S:
    """Return a section as a model.

    Args:
        model: class of the section.
        section: its keys and values.
        where: its own key in the config, such as regimes.wan_30ms; default: the whole config.

    Raises:
        ConfigError: a key or value is wrong. The error names the first one, the expected value, and the nearest key.
    """
    try:
        return model.model_validate(section)
    except ValidationError as error:
        found = error.errors(include_url=False)
        # A misspelt key says more than the one that is missing in its place.
        raise _refusal(model, min(found, key=lambda one: one["type"] != "extra_forbidden"), where) from error


def _refusal(model: type[BaseModel], error: ErrorDetails, where: str) -> ConfigError:
    section, field, path = _locate(model, error["loc"])
    key, kind, value = ".".join([where, *path] if where else path), error["type"], error["input"]
    parent = key.rpartition(".")[0]
    if kind == "extra_forbidden":
        return unknown_key(key, _names(section))
    if kind == "missing":
        about = f", {field.description}" if field and field.description else ""
        return ConfigError(f"{parent or 'the config'}: expected a section with {path[-1]}{about}")
    context = error.get("ctx", {})
    if kind == "value_error" and (field is None or any(_models(field.annotation))):
        # A rule over several keys of a section; its text begins with one of them, or with "expected".
        text = str(context["error"])
        return ConfigError(f"{key}{': ' if text.startswith('expected') else '.'}{text}" if key else text)
    if field is not None and field.description and issubclass(section, Section):
        expected = field.description  # of other models it says what the field is for
    elif kind == "model_type":
        expected = f"a section with {', '.join(_names(section, only_required=True)) or 'keys'}"
    elif kind == "literal_error":
        expected = "one of " + ", ".join(re.findall("'([^']*)'", context["expected"]))
    elif kind == "value_error":
        expected = str(context["error"])
    else:
        expected = _EXPECTED.get(kind, error["msg"]).format(**context)
    return ConfigError(f"{key or 'the config'}={value!r}: expected {expected}")


def _locate(
    model: type[BaseModel], location: Iterable[int | str]
) -> tuple[type[BaseModel], FieldInfo | None, list[str]]:
    """Return the model of an error's section, the field if it is one of its fields, and the path to it."""
    field, path = None, []
    for part in location:
        found = next((one for name, one in model.model_fields.items() if part in (name, one.validation_alias)), None)
        is_group = field is not None and get_origin(field.annotation) is Mapping and any(_models(field.annotation))
        if field is not None and found is None and field.description and not is_group:
            break  # a member of a union, or an element of a list: the field's description covers it
        path.append(str(part))
        field = found
        model = next(_models(found.annotation), model) if found is not None else model
    return model, field, path


def _models(annotation: object) -> Iterator[type[BaseModel]]:
    """Yield the models in an annotation, such as Regime in Mapping[str, Regime]."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models(inner)


def _names(model: type[BaseModel], *, only_required: bool = False) -> list[str]:
    return [
        str(field.validation_alias or name)
        for name, field in model.model_fields.items()
        if field.is_required() or not only_required
    ]


def did_you_mean(key: str, known: Iterable[str]) -> str:
    """Return the question whether the known key was meant that is spelt most like `key`; empty when none is near."""
    found = get_close_matches(key, list(known), n=1, cutoff=0.6)
    return f" (did you mean {found[0]}?)" if found else ""


def unknown_key(where: str, known: Iterable[str], reason: str = "unknown key", have: str = "known are") -> ConfigError:
    """Return the error for a key that does not exist: its full name, the nearest spelling, and the keys that do.

    Args:
        where: full name of the key, such as loaders.pytorch.num_wokers.
        known: keys that exist.
        reason: what is wrong with the key; default: "unknown key".
        have: words before the known keys; default: "known are".
    """
    names = sorted(known)
    meant = did_you_mean(where.rpartition(".")[2], names)
    return ConfigError(f"{where}: {reason}{meant}; {have} {', '.join(names) or 'none'}")


def quote_value(text: str) -> str:
    """Return a value as an override takes it: in quotes where it has more than letters, digits and a few signs."""
    if re.fullmatch(r"[A-Za-z0-9_./-]+", text):
        return text
    escaped = text.replace('"', r"\"")
    return f'"{escaped}"'
