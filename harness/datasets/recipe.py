"""What a recipe must tell, so that a made-up dataset of any kind is made, checked and kept in the same way."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:  # the processes that make samples need none of it
    import pyarrow as pa

__all__ = ["Content", "Recipe", "recipe_key"]

Content = bytes | bytearray | memoryview
"""Bytes of a file, or of a part of it."""


class Recipe(Protocol):
    """What a made-up dataset is: a frozen dataclass of plain numbers and text, equal ones making equal bytes.

    Its module imports neither torch nor anything else that is slow to import: every process that makes samples does.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]

    noun: ClassVar[str]
    """What its samples are called in messages: pictures, recordings, volumes."""

    together: ClassVar[int]
    """How many in a row are made by one process, for they share what is costly to prepare; 1 where they do not."""

    @property
    def samples(self) -> int:
        """How many there are."""
        ...

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """Wanted size of every sample in bytes, all its files together, shape (samples,)."""
        ...

    @property
    def labels(self) -> npt.NDArray[np.int64]:
        """Class of every sample, shape (samples,)."""
        ...

    def key(self) -> str:
        """Return 16 hex digits that tell this recipe from any other, of other kinds and versions too."""
        ...

    def paths(self) -> tuple[str, ...]:
        """Return the path of every sample's main file, relative to the tree."""
        ...

    def files(self, sample_id: int) -> Iterator[tuple[str, Content | Iterable[Content]]]:
        """Yield path and content of one sample's files, the main one among them.

        A content in parts is written part by part; neither it nor a file before it is kept.
        """
        ...

    def common(self) -> Iterator[tuple[str, Content]]:
        """Yield path and content of the files that belong to no sample alone."""
        ...

    def columns(self) -> Mapping[str, pa.Array]:
        """Return what else is known of each sample, by name."""
        ...

    def describe(self) -> Mapping[str, Any]:
        """Return what provenance tells of the samples beside the recipe's own values; plain values."""
        ...


def recipe_key(recipe: Any, version: int) -> str:
    """Return 16 hex digits over a recipe's class, its values and the version of what it makes."""
    text = json.dumps({"kind": type(recipe).__qualname__, "version": version, **asdict(recipe)}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
