"""The arguments of loaders: each is stated and explained once, as a field of a model, and checked by name."""

from __future__ import annotations

import inspect
import math
import operator
import sys
import textwrap
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Final, Literal, Self, TypeAlias, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo

from loaders.errors import LoaderConfigError

Remainder: TypeAlias = Literal["uneven", "drop", "pad"]
"""What happens to samples that cannot be shared equally: some ranks get one more, none does, or some come twice."""
OnError: TypeAlias = Literal["raise", "skip"]
"""What a sample that fails does: it ends the epoch, or it is left out and counted."""

F = TypeVar("F", bound=Callable[..., None])
T = TypeVar("T")

_MAX_WHOLE: Final = 2**63 - 1
_MAX_S: Final = 1e6
"""Half of the longest time that poll(2) can wait."""
_WIDTH: Final = 116


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


def _whole(value: object, minimum: int, maximum: int) -> int:
    if (number := as_whole(value, minimum, maximum)) is None:
        bounds = f"that is {minimum} or more" if maximum == _MAX_WHOLE else f"from {minimum} to {maximum}"
        raise ValueError(f"expected a whole number {bounds}")
    return number


def _seconds(value: object) -> float:
    if not (seconds := as_number(value, 0, _MAX_S)):
        raise ValueError(f"expected seconds above 0, at most {_MAX_S:g}")
    return seconds


def whole(minimum: int, maximum: int = _MAX_WHOLE) -> BeforeValidator:
    """Return the check of a field that is a whole number."""
    return BeforeValidator(lambda value: _whole(value, minimum, maximum))


def whole_or(word: str, maximum: int) -> BeforeValidator:
    """Return the check of a field that is a whole number of 1 to `maximum`, or a word."""

    def check(value: object) -> object:
        if value == word:
            return value
        if (number := as_whole(value, 1, maximum)) is None:
            raise ValueError(f"expected 1 to {maximum}, or {word}")
        return number

    return BeforeValidator(check)


Seconds: TypeAlias = Annotated[float, BeforeValidator(_seconds)]
"""A field that is a time above 0 s."""
Count: TypeAlias = Annotated[int, whole(1)]
"""A field that is a whole number of 1 or more."""


def _checked(name: str, value: object, check: Callable[[object], T]) -> T:
    try:
        return check(value)
    except ValueError as error:
        raise LoaderConfigError(f"{name}={value!r}: {error}") from None


def check_whole(name: str, value: object, minimum: int, maximum: int = _MAX_WHOLE) -> int:
    """Return an argument that has to be a whole number; raise LoaderConfigError naming it and its range."""
    return _checked(name, value, lambda given: _whole(given, minimum, maximum))


def check_seconds(name: str, value: object) -> float:
    """Return an argument that has to be a time above 0 s; raise LoaderConfigError naming it."""
    return _checked(name, value, _seconds)


def check_choice(name: str, value: object, choices: object) -> None:
    """Raise LoaderConfigError for an argument that is not one of the values of a Literal type."""
    known = get_args(choices)
    if value not in known:
        raise LoaderConfigError(f"{name}={value!r}: expected one of {', '.join(known)}")


_EXPECTED: Final = {"bool_type": "true or false", "string_type": "text", "is_instance_of": "a path, or none"}


class Options(BaseModel):
    """Arguments that a constructor takes as keywords.

    Raises LoaderConfigError, which names the argument, its value and the expected ones; and TypeError, as a function
    does, for one that is missing or unknown.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    def __init__(self, **given: Any) -> None:
        try:
            super().__init__(**given)
        except ValidationError as error:
            raise _explained(type(self), error) from None

    def replaced(self, **changes: Any) -> Self:
        """Return the same options with some changed."""
        return type(self)(**dict(self) | changes)


def _explained(kind: type[Options], error: ValidationError) -> Exception:
    first = error.errors(include_url=False)[0]
    name = str(first["loc"][0]) if first["loc"] else ""
    match first["type"]:
        case "missing":
            return TypeError(f"missing a required keyword argument: {name!r}")
        case "extra_forbidden":
            return TypeError(f"got an unexpected keyword argument {name!r}")
        case "value_error" if not name:  # of several arguments
            return LoaderConfigError(str(first["ctx"]["error"]))
        case "value_error":
            expected = str(first["ctx"]["error"])
        case "literal_error":
            expected = f"expected one of {', '.join(_choices(kind.model_fields[name].annotation))}"
        case other:
            expected = "expected " + _EXPECTED.get(other, first["msg"].removeprefix("Input should be "))
    return LoaderConfigError(f"{name}={first['input']!r}: {expected}")


def _choices(annotation: Any) -> Iterable[str]:
    for each in get_args(annotation):
        yield from [each] if isinstance(each, str) else _choices(each)


def _share_of_imbalance(value: object) -> float:
    if (share := as_number(value, 0)) is None:
        raise ValueError("expected a number that is 0 or more, such as 0.2")
    return share


class LoaderOptions(Options):
    """What every loader takes."""

    batch_size: Count = Field(description="samples of a batch; the last batch of an epoch may have fewer")
    seed: Annotated[int, whole(-_MAX_WHOLE)] = Field(
        description="of the order of an epoch and of all random numbers of its samples"
    )
    device: str = Field(default="cpu", description='"cpu" or "cuda", where batches are')
    rank: Annotated[int, whole(0)] | None = Field(
        default=None, description="of this process; None takes it from torch.distributed, RANK, or 0"
    )
    world_size: Count | None = Field(
        default=None, description="number of ranks that share the samples; None as for `rank`"
    )
    remainder: Remainder | None = Field(
        default=None,
        description='"uneven", "drop" or "pad" samples that cannot be shared equally; required for several ranks',
    )
    imbalance: Annotated[float, BeforeValidator(_share_of_imbalance)] = Field(
        default=0.0,
        description="by what share the last rank has more samples than each of the others, as a faulty sampler would "
        'give them; needs `remainder` "uneven"',
    )
    sample_timeout_s: Seconds | None = Field(
        default=None, description="seconds after which a sample that is not ready ends the epoch; None for no limit"
    )
    on_error: OnError = Field(
        default="raise",
        description='"raise" ends the epoch at a sample that fails, "skip" leaves it out and counts it in `stats`; of '
        "several ranks, batches then come again where one has too few for as many steps as planned",
    )

    def model_post_init(self, _: object) -> None:
        """Check what several arguments say together; raises LoaderConfigError."""
        check_imbalance(self.imbalance, self.remainder)


class RecordOptions(LoaderOptions):
    """What every loader takes, and those of records."""

    decode: Literal["auto", "dali", "torch", "torch-process", "raw"] = Field(
        default="auto",
        description='"dali" decodes images alone, "torch" and "torch-process" run any pipeline, "auto" takes the '
        'fitting one, and "raw" yields RawBatch, not decoded',
    )
    num_threads: Count = Field(default=2, description='threads that decode, or processes of "torch-process"')
    limit: Count | None = Field(
        default=None, description="an epoch has the samples whose ids are below it; None for all"
    )
    verify: bool = Field(default=True, description="whether the checksum of every record is computed")


def check_on_error(on_error: str, sample_timeout_s: float | None) -> None:
    """Raise LoaderConfigError for an unknown policy, or for a limit that is not a time in seconds."""
    check_choice("on_error", on_error, OnError)
    if sample_timeout_s is not None:
        check_seconds("sample_timeout_s", sample_timeout_s)


def check_ranks(rank: int, world_size: int, remainder: str | None) -> None:
    """Raise LoaderConfigError for a rank out of range, and where several ranks need a `remainder`."""
    check_whole("rank", rank, 0, check_whole("world_size", world_size, 1) - 1)
    if remainder is not None:
        check_choice("remainder", remainder, Remainder)
    elif world_size > 1:
        raise LoaderConfigError(
            f"remainder: choose uneven, drop or pad for {world_size} ranks; DDP needs equal counts, so drop or pad; "
            "rank=0, world_size=1 gives a rank all samples"
        )


def check_imbalance(imbalance: float, remainder: str | None) -> None:
    """Raise LoaderConfigError for an imbalance that is no share, or that the `remainder` does not allow."""
    _checked("imbalance", imbalance, _share_of_imbalance)
    if imbalance and remainder in ("drop", "pad"):
        raise LoaderConfigError(f"imbalance={imbalance}: remainder={remainder} makes equal shares; use uneven")


def takes_options(kind: type[Options]) -> Callable[[F], F]:
    """Decorate a constructor with `**keywords`: its signature and its help show the fields of an option class instead.

    A field that the constructor names itself keeps the constructor's default. `help` and `inspect.signature` show
    the accepted arguments, and the harness checks the keys of a configuration against them.
    """

    def decorate(init: F) -> F:
        own = [each for each in inspect.signature(init).parameters.values() if each.kind is not each.VAR_KEYWORD]
        named = {each.name for each in own}
        fields = {name: field for name, field in kind.model_fields.items() if name not in named}
        shared = [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=_default(field), annotation=field.annotation
            )
            for name, field in fields.items()
        ]
        keywords = [each for each in (*own, *shared) if each.kind is each.KEYWORD_ONLY]
        others = [each for each in own if each.kind is not each.KEYWORD_ONLY]
        keywords.sort(key=lambda each: each.default is not each.empty)
        init.__signature__ = inspect.Signature([*others, *keywords])  # type: ignore[attr-defined]
        lines = [_explain(name, field) for name, field in fields.items()]
        init.__doc__ = "\n".join([inspect.cleandoc(init.__doc__ or ""), *lines]) + "\n"
        return init

    return decorate


def _default(field: FieldInfo) -> Any:
    return inspect.Parameter.empty if field.is_required() else field.default


def _explain(name: str, field: FieldInfo) -> str:
    words = field.description if field.is_required() else f"{field.description} (default {field.default!r})"
    return textwrap.fill(f"{name}: {words}.", _WIDTH, initial_indent="    ", subsequent_indent=" " * 8)
