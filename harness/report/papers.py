"""Values that papers publish. Each stands once, in conf/papers, and figures and claims read it from there."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Final, TypeAlias, TypeVar

import yaml
from pydantic import AfterValidator, BaseModel, Field

from harness.config import list_packaged
from harness.config.validation import Section, parse
from harness.errors import ConfigError, ResultsError
from harness.results.files import refuse_damage
from loaders.shared.options import as_number

Tree: TypeAlias = "float | tuple[float, float] | Mapping[str, Tree]"
"""A number, a range, or these by key; a key that is a number is text: 30, 0.1."""

_HELP: Final = "docs/figures.md describes the keys"


def _tree(value: object) -> Tree:
    """Return values as a YAML, or an earlier call, gives them."""
    if isinstance(value, Mapping):
        return {f"{key:g}" if isinstance(key, float) else str(key): _tree(inner) for key, inner in value.items()}
    match [as_number(end) for end in (value if isinstance(value, list | tuple) else [value])]:
        case [float(number)]:
            return number
        case [float(first), float(last)]:
            return first, last
    raise ValueError("expected a number, a pair of numbers, or keys with such values")


class Published(Section):
    """One value, or one table of values, of a paper."""

    at: str
    """Section, table or figure."""
    of: str
    """Quantity, unit and keys."""
    conditions: str = ""
    """Machine or dataset."""
    workload: str = "resnet50"
    """Workload of a figure by distance."""
    conflict: str | Mapping[str, str] = ""
    """Where the paper contradicts itself: what else it says of the same quantity, in a sentence.

    Or a sentence by the keys of the value that it is of, such as mask_rcnn/mean. Shown beside the value.
    """
    stored: Annotated[object, AfterValidator(_tree)] = Field(default={}, alias="value")

    @property
    def value(self) -> Tree:
        """The values; empty where only the paper's plot has them."""
        return _tree(self.stored)

    @property
    def conflicts(self) -> Mapping[str, str]:
        """Where the paper contradicts itself, by the keys of the value; of all values by an empty key."""
        return self.conflict if isinstance(self.conflict, Mapping) else {"": self.conflict} if self.conflict else {}


class PaperItem(Section):
    """A figure or table of a paper, and the experiment that makes it."""

    item: str
    experiment: str = ""
    figure: str = ""
    """Whose claims are this item's; empty: that of the experiment's name."""
    minutes: float = 0.0
    """Of the small size on two cores."""
    needs: str = ""
    """What some of its claims need besides two cores."""
    absent: str = ""
    """Why there is no experiment."""


class Paper(Section):
    """A paper, its figures and tables, and its values."""

    citation: str = Field(alias="paper")
    name: str
    items: list[PaperItem] = Field(default_factory=list)
    values: Mapping[str, Published]


S = TypeVar("S", bound=BaseModel)


def parse_model(path: Path, model: type[S], stored: object) -> S:
    """Return the content of a YAML as a model. Raises ResultsError naming the file and the key that is wrong."""
    try:
        return parse(model, stored)
    except ConfigError as error:
        raise ResultsError(f"{path}: {str(error).removeprefix('the config: ')}; {_HELP}") from error


@lru_cache(maxsize=16)
def read_paper(name: str) -> Paper:
    """Return a paper of conf/papers. Raises ResultsError where there is no such paper or its file is wrong."""
    known = list_packaged("papers")
    if name not in known:
        raise ResultsError(f"no paper {name!r} in conf/papers; expected one of {', '.join(known)}")
    path = known[name]
    with refuse_damage(path, _HELP):
        stored = yaml.safe_load(path.read_text(encoding="utf-8"))
    return parse_model(path, Paper, stored)


def find_published(path: str) -> Published:
    """Return an entry by paper and id, such as "minato/fig7". Raises ResultsError where there is none."""
    name, _, entry = path.partition("/")
    values = read_paper(name).values
    if entry not in values:
        raise ResultsError(f"no published value {path!r}: conf/papers/{name}.yaml has {', '.join(values)}")
    return values[entry]


def find_values(path: str) -> Tree:
    """Return values by paper, id and keys, such as "minato/fig7/unet3d". Raises ResultsError where there are none."""
    name, entry, *keys = [*path.split("/"), ""] if "/" not in path else path.split("/")
    found = find_published(f"{name}/{entry}").value
    for key in keys:
        if not isinstance(found, Mapping) or key not in found:
            known = ", ".join(found) if isinstance(found, Mapping) else "no keys"
            raise ResultsError(f"no published value {path!r}: expected {known} in place of {key!r}")
        found = found[key]
    return found


def find_conflict(path: str) -> str:
    """Return where the paper contradicts the value of a path, such as "minato/fig2/unet3d/high"; empty if nowhere."""
    name, entry, *keys = path.split("/")
    conflicts = find_published(f"{name}/{entry}").conflicts
    return conflicts.get("/".join(keys)) or conflicts.get("", "")


def find_table(path: str) -> Mapping[str, Tree]:
    """Return values by their last key. Raises ResultsError where there are none."""
    found = find_values(path)
    if not isinstance(found, Mapping):
        raise ResultsError(f"published value {path!r}: expected values by key, got {found}")
    return found


def low(value: str | Tree) -> float:
    """Return a value, or the lower end of a range. Raises ResultsError where a path has no value."""
    return _end(value, 0)


def high(value: str | Tree) -> float:
    """Return a value, or the upper end of a range. Raises ResultsError where a path has no value."""
    return _end(value, -1)


def _end(value: str | Tree, end: int) -> float:
    found = find_values(value) if isinstance(value, str) else value
    if isinstance(found, Mapping):
        raise ResultsError(f"published value {value!r}: expected a number, got values for {', '.join(found)}")
    return found[end] if isinstance(found, tuple) else found
