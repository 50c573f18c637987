"""Datasets and shards on the storage hosts: made or found there, described to the lead.

`python -m harness.run.host_data` does so on a host, over the supervisor. It reads a line of JSON: the composed config,
the folder of datasets, and a folder for what the lead fetches. It writes its progress, a line of JSON each.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, cast

import numpy as np

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
from joulefeed.child import Child, ChildError
from loaders.base import Samples

_SILENCE_S: Final = 1800.0
"""A step of making or checking a dataset, without a word."""
_DATA: Final = "data.json"


def open_data_on(
    nodes: Sequence[Node], config: Mapping[str, object], cache: Path, progress: Progress, storages: int = 1
) -> RunData:
    """Make or find an experiment's datasets on each host, in the same folder; return them as the first one describes.

    The first host also reads a sample of each workload and makes each loader, as `try_loaders` does.

    Args:
        nodes: the hosts.
        config: the composed config.
        cache: the folder of datasets on each host.
        progress: shows how far the first one is.
        storages: how many storage nodes serve the run.

    Raises:
        HarnessError: what the host's own attempt raised, with the host's name; DatasetError where two hosts differ.
    """
    order = {"config": config, "cache": str(cache), "storages": storages}
    children = [(node, _start(node, order | {"is_first": node is nodes[0]})) for node in nodes]
    try:
        for node, child in children:
            _follow(node, child, progress if node is nodes[0] else lambda what, done, total: None)
    finally:
        for _, child in children:
            child.stop(eof_s=0)
    found = [_fetch(node) for node in nodes]
    for node, data in zip(nodes[1:], found[1:], strict=True):
        if data.content_hash != found[0].content_hash:
            raise DatasetError(
                f"hosts {nodes[0].host} and {node.host} have different datasets ({found[0].content_hash} and "
                f"{data.content_hash}): expected the same files in {cache}, or in dataset.root"
            )
    return found[0]


def _folder(node: Node) -> Path:
    return node.folder / "data"


def _start(node: Node, order: Mapping[str, object]) -> Child:
    argv = [sys.executable, "-m", "harness.run.host_data"]
    child = node.start(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, keep_stderr=True)
    with suppress(ChildError):
        child.send(json.dumps({**order, "out": str(_folder(node))}).encode() + b"\n")
    return child


def _follow(node: Node, child: Child, progress: Progress) -> None:
    while True:
        try:
            said = child.ready(_SILENCE_S)
        except ChildError as error:
            raise DatasetError(f"host {node.host}: its datasets: the process {error}") from error
        if "error" in said:
            kind = getattr(errors, str(said["kind"]), DatasetError)
            raise kind(f"host {node.host}: {said['error']}")
        if said.get("done"):
            return
        progress(*cast(tuple[str, int, int], said["progress"]))


def _fetch(node: Node) -> RunData:
    with TemporaryDirectory(prefix="joulefeed-data-") as name:
        folder = Path(name)
        if node.is_remote:
            node.fetch(_folder(node), folder)
        else:
            folder = _folder(node)
        return _load(folder)


def _store(data: RunData, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    stored = []
    for number, one in enumerate(data.each):
        one.handle.samples.save(folder / f"samples-{number}.parquet")
        np.save(folder / f"on_compute-{number}.npy", one.placed.on_compute)
        if one.placed.storage_of is not None:
            np.save(folder / f"storage_of-{number}.npy", one.placed.storage_of)
        stored.append(
            {
                "workloads": [key for key, of in data.by_workload.items() if of is one],
                "name": one.handle.name,
                "skipped": one.handle.skipped,
                "content_hash": one.handle.content_hash,
                "describe": dict(one.handle.describe),
                "shards": None if one.shards is None else str(one.shards),
                "kind": one.placed.kind,
                "placed": {part: str(path) for part, path in one.placed.shards.items()},
                "preparation": None if one.preparation is None else asdict(one.preparation),
                "forms": {
                    module: [str(form.folder), None if form.preparation is None else asdict(form.preparation)]
                    for module, form in one.forms.items()
                },
            }
        )
    (folder / _DATA).write_text(json.dumps(stored, default=str))


def _load(folder: Path) -> RunData:
    found: dict[str, OpenData] = {}
    for number, one in enumerate(json.loads((folder / _DATA).read_text())):
        samples = Samples.load(folder / f"samples-{number}.parquet")
        handle = DatasetHandle(one["name"], samples, tuple(one["skipped"]), one["content_hash"], one["describe"])
        shards = {part: Path(path) for part, path in one["placed"].items()}
        on_compute, several = np.load(folder / f"on_compute-{number}.npy"), folder / f"storage_of-{number}.npy"
        storage_of = np.load(several) if several.exists() else None
        placed = PlacedData(one["kind"], on_compute, samples.sizes, shards, storage_of)
        cost = None if one["preparation"] is None else Preparation(**one["preparation"])
        forms = {
            module: PreparedForm(Path(folder), None if cost is None else Preparation(**cost))
            for module, (folder, cost) in one["forms"].items()
        }
        data = OpenData(handle, placed, None if one["shards"] is None else Path(one["shards"]), cost, forms)
        found |= dict.fromkeys(one["workloads"], data)
    return RunData(found)


def main() -> int:
    """Make or find what the line on standard input asks for; returns the exit status."""
    order: dict[str, Any] = json.loads(sys.stdin.readline())

    def progress(what: str, done: int, total: int) -> None:
        _say({"progress": [what, done, total]})

    try:
        experiment = Experiment.from_config(order["config"])
        data = open_data(experiment, Path(order["cache"]), progress, order["storages"])
        if order["is_first"]:
            try_loaders(experiment, data, progress)
        _store(data, Path(order["out"]))
    except HarnessError as error:
        _say({"error": str(error), "kind": type(error).__name__})
        return error.exit_status
    _say({"done": True})
    return 0


def _say(message: Mapping[str, object]) -> None:
    print(json.dumps(message), flush=True)


if __name__ == "__main__":
    sys.exit(main())
