"""Datasets and shards on the storage hosts: made or found there, described to the lead.

`python -m harness.run.host_data` does so on a host, over the supervisor. It answers the call `open_data`.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
from pydantic import TypeAdapter

from harness import errors
from harness.config.specs import Experiment
from harness.datasets import DatasetHandle, Progress
from harness.datasets.placement import PlacedData
from harness.errors import DatasetError, HarnessError
from harness.results.preparation import Preparation
from harness.run.check import try_loaders
from harness.run.datasets import OpenData, RunData, open_data
from harness.run.prepare import PreparedForm
from harness.testbed.base import Node
from joulefeed.calls import Answers, CallError, request, wait_answer
from joulefeed.child import Child, ChildError
from loaders.base import Samples

_SILENCE_S: Final = 1800.0
"""A step of making or checking a dataset, without a word."""


@dataclass(frozen=True, slots=True)
class _Description:
    """What a host says of one dataset; files have what it knows of each sample."""

    workloads: Sequence[str]
    """Those that are trained on it."""
    name: str
    skipped: tuple[str, ...]
    content_hash: str
    facts: Mapping[str, object]
    placement: str
    parts: Mapping[str, Path]
    """The shard folder of each part."""
    shards: Path | None
    preparation: Preparation | None
    forms: Mapping[str, PreparedForm]


_ANSWER: Final = TypeAdapter(list[_Description])


def open_data_on(
    nodes: Sequence[Node], config: Mapping[str, object], cache: Path, progress: Progress, storages: int = 1
) -> RunData:
    """Make or find an experiment's datasets on each host, in the same folder; return them as the first one describes.

    The first host also reads a sample of each workload and makes each loader, as `try_loaders` does, and `progress`
    shows how far it is. Datasets are in the folder `cache` on each host, and so many `storages` serve the run.

    Raises what a host's own attempt raised, with the host's name, and DatasetError where two hosts differ.
    """
    argv = [sys.executable, "-m", "harness.run.host_data"]
    order = {"config": config, "cache": str(cache), "storages": storages}
    children: list[Child] = []
    try:
        for node in nodes:
            children.append(node.start(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, keep_stderr=True))
            line = request("open_data", **order, out=str(_folder(node)), tries_loaders=node is nodes[0])
            with suppress(ChildError):  # the wait says why
                children[-1].send(line)
        found = [
            _wait(node, child, progress if node is nodes[0] else lambda what, done, total: None)
            for node, child in zip(nodes, children, strict=True)
        ]
    finally:
        for child in children:
            child.stop(eof_s=0)
    for node, data in zip(nodes[1:], found[1:], strict=True):
        if data.content_hash != found[0].content_hash:
            raise DatasetError(
                f"hosts {nodes[0].host} and {node.host} have different datasets ({found[0].content_hash} and "
                f"{data.content_hash}): expected the same files in {cache}, or in dataset.root"
            )
    return found[0]


def _folder(node: Node) -> Path:
    return node.folder / "data"


def _wait(node: Node, child: Child, progress: Progress) -> RunData:
    try:
        answer = wait_answer(child, "open_data", timeout_s=_SILENCE_S, progress=progress)
    except ChildError as error:
        raise DatasetError(f"host {node.host}: its datasets: the process {error}") from error
    except CallError as error:
        raise getattr(errors, error.kind, DatasetError)(f"host {node.host}: {error}") from error
    with TemporaryDirectory(prefix="joulefeed-data-") as name:
        folder = Path(name) if node.is_remote else _folder(node)
        if node.is_remote:
            node.fetch(_folder(node), folder)
        return _load(_ANSWER.validate_python(answer), folder)


def _store(data: RunData, folder: Path) -> object:
    """Write the facts of each sample into a folder; return the rest as plain data."""
    folder.mkdir(exist_ok=True)
    described = []
    for number, one in enumerate(data.each):
        handle, placed = one.handle, one.placed
        handle.samples.save(folder / f"samples-{number}.parquet")
        storage_of = np.empty(0, np.int16) if placed.storage_of is None else placed.storage_of
        np.savez(folder / f"placed-{number}.npz", on_compute=placed.on_compute, storage_of=storage_of)
        workloads = [key for key, of in data.by_workload.items() if of is one]
        facts = (handle.name, handle.skipped, handle.content_hash, handle.describe)
        described.append(
            _Description(workloads, *facts, placed.kind, placed.shards, one.shards, one.preparation, one.forms)
        )
    return _ANSWER.dump_python(described, mode="json")


def _load(described: Sequence[_Description], folder: Path) -> RunData:
    found: dict[str, OpenData] = {}
    for number, one in enumerate(described):
        samples = Samples.load(folder / f"samples-{number}.parquet")
        with np.load(folder / f"placed-{number}.npz") as arrays:
            on_compute, storage_of = arrays["on_compute"], arrays["storage_of"]
        several = storage_of if len(storage_of) else None
        placed = PlacedData(one.placement, on_compute, samples.sizes, one.parts, several)
        handle = DatasetHandle(one.name, samples, one.skipped, one.content_hash, one.facts)
        found |= dict.fromkeys(one.workloads, OpenData(handle, placed, one.shards, one.preparation, one.forms))
    return RunData(found)


def main() -> int:
    """Answer the calls on standard input; returns the exit status."""

    def answer(*, config: dict[str, Any], cache: str, storages: int, out: str, tries_loaders: bool) -> object:
        experiment = Experiment.from_config(config)
        data = open_data(experiment, Path(cache), answers.progress, storages)
        if tries_loaders:
            try_loaders(experiment, data, answers.progress)
        return _store(data, Path(out))

    answers = Answers({"open_data": answer}, (HarnessError,))
    answers.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
