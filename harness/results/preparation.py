"""The cost of converting a dataset, once; stored beside the shards, and in the folder of each run that reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from harness.errors import ResultsError
from harness.results.files import RUN, read_json, write_json

PREPARATION: Final = "preparation.json"
"""Name of the file: one `Preparation` beside shards, a list of them in a run's folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """The conversion of one dataset to shards, or of its shards to a form of them. None is unknown."""

    dataset: str
    samples: int
    seconds: float
    cpu_s: float
    raw_bytes: int
    """Of the samples' files; of the shards, where these were converted."""
    shard_bytes: int
    """Of the shards with their indexes, or of the form."""
    joules: float | None = None
    """Of the whole host, idle power included."""
    energy_source: str = ""
    """Source by domain, as in epochs.csv; `estimate` is a source too."""
    form: str = ""
    """The form that shards were converted to, such as cassandra-1; empty for shards themselves."""
    module: str = ""
    """The module whose daemon serves the form."""

    @property
    def estimated(self) -> bool:
        """Whether the joules are an estimate."""
        return "estimate" in self.energy_source


def load_preparation(shards: Path) -> Preparation | None:
    """Return what converting to a folder of shards cost. None where that was not measured, or cannot be read."""
    try:
        return read_json(shards / PREPARATION, Preparation, "")
    except ResultsError:
        return None


def store_preparations(folder: Path, found: Sequence[Preparation]) -> None:
    """Write known costs into a run's folder; where none is known, the file of an earlier session stays."""
    if found:
        write_json(folder / PREPARATION, [asdict(one) for one in found])


def read_preparations(folder: Path) -> tuple[Preparation, ...]:
    """Return the costs that a run's folder has; none where no cost is known. Raises ResultsError for a damaged file."""
    path = folder / PREPARATION
    return read_json(path, tuple[Preparation, ...], RUN) if path.exists() else ()
