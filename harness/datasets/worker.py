"""The processes that make the samples of a dataset; each takes the next sample when it has made one.

The job of a process is one argument in JSON. The samples that it makes it reads from stdin, a file whose position all
workers share: no two read the same one. Its results are one JSON line a sample on stdout, a pipe that they share: a
line is written at once and is shorter than the pipe's atomic unit. A process dies with the one that started it.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from harness.datasets.generate import GeneratedDataset, write_file
from harness.errors import DatasetError
from harness.system.disk import disk_error

if TYPE_CHECKING:
    from joulefeed.child import Child


_ID: Final = np.dtype("<u8")
"""How the number of a sample stands on stdin."""
_MAX_WORKERS: Final = 32
_MIN_SHARE_BYTES: Final = 100_000
"""Bytes below which starting another process costs more than it saves."""


def made_by_workers(dataset: GeneratedDataset, tree: Path, needed_bytes: int) -> Iterator[dict[str, Any]]:
    """Make the files of all samples below `tree`; yield a result for each, in the order in which they are made.

    A result has `id` and `files`, the size in bytes and the SHA-256 of each by its path. Raises DiskError when the
    disk is full, DatasetError when a process dies.
    """
    from joulefeed.child import Child

    cores = len(os.sched_getaffinity(0))
    count = max(1, min(cores, _MAX_WORKERS, dataset.samples, needed_bytes // _MIN_SHARE_BYTES))
    kind = [type(dataset).__module__, type(dataset).__qualname__]
    job = json.dumps({"kind": kind, "recipe": asdict(dataset), "folder": str(tree)})
    reader, writer = os.pipe()
    with ExitStack() as stack:
        lines = stack.enter_context(os.fdopen(reader, "rb"))
        workers: list[Child] = []
        try:
            ids = os.memfd_create("sample-ids", os.MFD_CLOEXEC)
            stack.callback(os.close, ids)
            os.pwrite(ids, np.arange(dataset.samples, dtype=_ID).tobytes(), 0)
            for _ in range(count):
                argv = [sys.executable, "-m", "harness.datasets.worker", job]
                workers.append(stack.enter_context(Child(argv, stdin=ids, stdout=writer, killed_with_parent=True)))
        finally:
            os.close(writer)
        for line in lines:
            result = json.loads(line)
            if "errno" in result:
                failure = OSError(result["errno"], os.strerror(result["errno"]), result["path"])
                raise disk_error(failure, {"cache_dir": tree}, needed_bytes)
            yield result
            for worker in workers:
                if worker.process.poll() not in {None, 0}:
                    raise _died(worker, dataset.name)
        for worker in workers:
            if worker.process.wait():
                raise _died(worker, dataset.name)


def _died(worker: Child, name: str) -> DatasetError:
    return DatasetError(
        f"process {worker.pid}, which makes {name}, {worker.describe_end()}; is there enough memory? Run again"
    )


def main() -> int:
    """Make samples until none is left; return 1 when a file could not be written."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # what ends it has something to say
    job = json.loads(sys.argv[1])
    module, name = job["kind"]
    dataset: GeneratedDataset = getattr(importlib.import_module(module), name)(**job["recipe"])
    tree = Path(job["folder"])
    while read := os.read(sys.stdin.fileno(), _ID.itemsize):
        sample_id = int.from_bytes(read, "little")
        files = {}
        for relative, content in dataset.files(sample_id):
            path = tree / relative
            try:
                files[relative] = write_file(path, content)
            except OSError as error:
                _say({"errno": error.errno, "path": str(path)})
                return 1
        _say({"id": sample_id, "files": files})
    return 0


def _say(result: dict[str, object]) -> None:
    os.write(1, (json.dumps(result) + "\n").encode())


if __name__ == "__main__":
    sys.exit(main())
