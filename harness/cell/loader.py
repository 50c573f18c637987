"""Makes the loader of a cell of its spec; `python -m harness.cell.loader` tries that in the loader's environment."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pyarrow.parquet as pq

from harness.cell.messages import CellSpec
from harness.cell.ranks import Ranks
from harness.config.targets import instantiate, takes
from harness.errors import HarnessError
from harness.workloads import Workload
from joulefeed.calls import Answers
from loaders.base import Loader, Samples
from loaders.errors import LoaderError


def batch_size_of(spec: CellSpec, workload: Workload, ranks: Ranks | None) -> int:
    """Return the samples of this rank's batch: with an imbalance the last rank's batches are larger, not more."""
    imbalance = float(spec.loader.params.get("imbalance", 0.0))
    if ranks is None or ranks.rank < ranks.world_size - 1:
        return workload.batch_size
    return round(workload.batch_size * (1 + imbalance))


def count_samples(spec: CellSpec) -> int:
    """Return how many samples the cell's dataset has."""
    rows: int = pq.ParquetFile(spec.samples).metadata.num_rows
    return rows


def make_loader(
    spec: CellSpec,
    workload: Workload,
    device: str,
    *,
    warmup: bool = False,
    ranks: Ranks | None = None,
    batch_size: int | None = None,
) -> Loader:
    """Make the cell's loader from its spec; `warmup` makes one over the first few samples alone.

    With several `ranks` it is the loader of this one's share, and every sample is some rank's. `batch_size` is another
    one than the workload's.

    Raises ConfigError for arguments that the loader does not take.
    """
    common: dict[str, object] = {
        "transform": workload.transform,
        "batch_size": batch_size_of(spec, workload, ranks) if batch_size is None else batch_size,
        "seed": spec.seed,
        "device": device,
    }
    if ranks is not None:
        common |= {"rank": ranks.rank, "world_size": ranks.world_size, "remainder": "uneven"}
    if spec.loader.reads == "stream":
        common |= _stream_arguments(spec, warmup=warmup)
    else:
        samples = Samples.load(spec.samples).at(spec.data_root or Path())
        if spec.loader.listed is not None and not warmup:
            samples = samples.with_listing(spec.loader.listed)
        common["samples"] = samples.first(spec.warmup_samples) if warmup else samples
    loader: Loader = instantiate(spec.loader.target, {**common, **spec.loader.params})
    return loader


def _stream_arguments(spec: CellSpec, *, warmup: bool) -> dict[str, object]:
    given: dict[str, object] = (
        {"endpoint": spec.endpoints[0]} if len(spec.endpoints) == 1 else {"endpoints": list(spec.endpoints)}
    )
    if spec.keys is not None:
        given["keys"] = str(spec.keys)
    if warmup:
        given["limit"] = spec.warmup_samples
    elif takes(spec.loader.target, "events"):
        given["events"] = spec.stream_events
    return given


def try_loader(spec: CellSpec, workload: Workload) -> str | None:
    """Make and close a loader as for a warm-up; return why it cannot be made, or None. Raises HarnessError."""
    try:
        with make_loader(spec, workload, "cpu", warmup=True):
            return None
    except HarnessError:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a loader may be the user's; what it raises is the refusal
        return f"{'' if isinstance(error, LoaderError) else f'{type(error).__name__}: '}{error}"


def _answer(spec: str) -> str | None:
    cell = CellSpec.from_json(spec)
    try:
        return try_loader(cell, instantiate(cell.workload.target, cell.workload.params))
    except HarnessError as error:
        return str(error)


def main() -> int:
    """Try the loaders that the calls on standard input ask for; returns the exit status."""
    # What libraries print must not mix with the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    Answers({"try_loader": _answer}, write=answers.write).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
