"""The arguments that all loaders share, stated and checked once."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, Literal, Required, TypeAlias, TypedDict, TypeVar, cast

from loaders.arguments import as_number, check_choice, check_seconds, check_whole
from loaders.errors import LoaderConfigError

Remainder: TypeAlias = Literal["uneven", "drop", "pad"]
"""What happens to samples that cannot be shared equally: some ranks get one more, none does, or some come twice."""
OnError: TypeAlias = Literal["raise", "skip"]
"""What a sample that fails does: it ends the epoch, or it is left out and counted."""

F = TypeVar("F", bound=Callable[..., None])
T = TypeVar("T")


class LoaderKeywords(TypedDict, total=False):
    """The fields of LoaderOptions, as the keywords of a constructor."""

    batch_size: Required[int]
    seed: Required[int]
    device: str
    rank: int | None
    world_size: int | None
    remainder: Remainder | None
    imbalance: float
    sample_timeout_s: float | None
    on_error: OnError


@dataclass(frozen=True, slots=True)
class LoaderOptions:
    """What every loader of files takes; raises LoaderConfigError for a value out of range.

    Args:
        batch_size: samples of a batch; the last batch of an epoch may have fewer.
        seed: of the order of an epoch and of all random numbers of its samples.
        device: "cpu" or "cuda", where batches are (default "cpu").
        rank: of this process; None takes it from torch.distributed, RANK, or 0 (default None).
        world_size: number of ranks that share the samples; None as for `rank` (default None).
        remainder: "uneven", "drop" or "pad" samples that cannot be shared equally; required for several ranks
            (default None).
        imbalance: by what share the last rank has more samples than each of the others, as a faulty sampler would
            give them; needs `remainder` "uneven" (default 0).
        sample_timeout_s: seconds after which a sample that is not ready ends the epoch; None for no limit
            (default None).
        on_error: "raise" ends the epoch at a sample that fails, "skip" leaves it out and counts it in `stats`; of
            several ranks, batches then come again where one has too few for as many steps as planned (default "raise").
    """

    batch_size: int
    seed: int
    device: str = "cpu"
    rank: int | None = None
    world_size: int | None = None
    remainder: Remainder | None = None
    imbalance: float = 0.0
    sample_timeout_s: float | None = None
    on_error: OnError = "raise"

    def __post_init__(self) -> None:
        check_whole("batch_size", self.batch_size, 1)
        check_imbalance(self.imbalance, self.remainder)
        check_on_error(self.on_error, self.sample_timeout_s)


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
    if as_number(imbalance, 0) is None:
        raise LoaderConfigError(f"imbalance={imbalance!r}: expected a number that is 0 or more, such as 0.2")
    if imbalance and remainder in ("drop", "pad"):
        raise LoaderConfigError(f"imbalance={imbalance}: remainder={remainder} makes equal shares; use uneven")


def pick(kind: type[T], keywords: dict[str, object]) -> T:
    """Take the fields of an option class out of `keywords`; return the class made of them."""
    found = {each.name: keywords.pop(each.name) for each in fields(cast(Any, kind)) if each.name in keywords}
    return kind(**found)


def check_empty(keywords: dict[str, object], owner: str, renamed: Mapping[str, str]) -> None:
    """Raise TypeError for a keyword that no option class took, and say its new name where it was renamed."""
    for name in keywords:
        hint = f"; it is named {renamed[name]} now" if name in renamed else ""
        raise TypeError(f"{owner}() got an unexpected keyword argument {name!r}{hint}")


def takes_options(*kinds: type) -> Callable[[F], F]:
    """Decorate a constructor with `**keywords`: its signature and its help show the fields of option classes instead.

    A field that the constructor names itself keeps the constructor's default. `help` and `inspect.signature` show
    the accepted arguments, and the harness checks the keys of a configuration against them.
    """

    def decorate(init: F) -> F:
        own = [each for each in inspect.signature(init).parameters.values() if each.kind is not each.VAR_KEYWORD]
        named = {each.name for each in own}
        shared = [each for kind in kinds for each in _parameters(kind) if each.name not in named]
        keywords = [each for each in (*own, *shared) if each.kind is each.KEYWORD_ONLY]
        others = [each for each in own if each.kind is not each.KEYWORD_ONLY]
        keywords.sort(key=lambda each: each.default is not each.empty)
        init.__signature__ = inspect.Signature([*others, *keywords])  # type: ignore[attr-defined]
        classes = [each for kind in kinds for each in reversed(kind.__mro__) if "__doc__" in vars(each)]
        lists = "".join(inspect.cleandoc(each.__doc__ or "").partition("\nArgs:")[2].rstrip() for each in classes)
        init.__doc__ = f"{inspect.cleandoc(init.__doc__ or '')}{lists}\n"
        return init

    return decorate


def _parameters(kind: type) -> Iterable[inspect.Parameter]:
    for each in fields(kind):
        default = inspect.Parameter.empty if each.default is MISSING else each.default
        yield inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=each.type)
