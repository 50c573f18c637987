"""Generated datasets, and adapters of real ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # torch comes with it, and the processes that make samples do not need it
    from loaders.base import Samples

__all__ = ["DatasetHandle", "Progress"]

Progress = Callable[[str, int, int], None]
"""Called with the name of a task, how many of its parts are done, and how many there are."""


@dataclass(frozen=True, slots=True)
class DatasetHandle:
    """A dataset that is on disk, whole, and checked."""

    name: str
    samples: Samples
    skipped: tuple[str, ...]
    """Files that were left out because they are broken, relative to the root."""
    content_hash: str
    """Differs between any two sets of samples; 16 hex digits."""
    describe: Mapping[str, object]
    """Facts for provenance.json; plain values."""
