"""The processes that make the files of a generated dataset; each makes the next samples when it is done with some."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

from harness.errors import DatasetError
from harness.system.disk import disk_error
from joulefeed.calls import Answers, call
from joulefeed.child import Child, ChildError

Content = bytes | bytearray | memoryview
"""Bytes of a file, or of a part of it."""
Files = dict[str, tuple[int, str]]
"""Size in bytes and SHA-256 of each file, by its path."""

_MAX_WORKERS: Final = 32
_MIN_SHARE_BYTES: Final = 100_000
"""Bytes below which starting another process costs more than it saves."""
_CALL_SAMPLES: Final = 8
"""Samples that a worker makes at most before it answers."""
_LIMIT_S: Final = 1800.0
"""How long a worker may take for them."""


def make_files(dataset: Any, tree: Path, needed_bytes: int) -> Iterator[tuple[int, Files]]:
    """Make the files of all samples of a GeneratedDataset below `tree`; yield each sample's id and its files.

    Raises DiskError when the disk is full, DatasetError when a process dies.
    """
    count = max(1, min(len(os.sched_getaffinity(0)), _MAX_WORKERS, dataset.samples, needed_bytes // _MIN_SHARE_BYTES))
    kind = [type(dataset).__module__, type(dataset).__qualname__]
    job = json.dumps({"kind": kind, "recipe": asdict(dataset), "folder": str(tree)})
    argv = [sys.executable, "-m", "harness.datasets.worker", job]
    step = max(1, min(_CALL_SAMPLES, dataset.samples // (4 * count)))
    shares = [range(start, min(start + step, dataset.samples)) for start in range(0, dataset.samples, step)]
    free: SimpleQueue[Child] = SimpleQueue()

    def make(ids: Sequence[int]) -> Any:
        worker = free.get()
        try:
            return call(worker, "make", timeout_s=_LIMIT_S, ids=list(ids))
        except ChildError as error:
            message = f"process {worker.pid}, which makes {dataset.name}, {error}; is there enough memory? Run again"
            raise DatasetError(message) from error
        finally:
            free.put(worker)

    with ExitStack() as stack:
        workers = [stack.enter_context(Child(argv, killed_with_parent=True)) for _ in range(count)]
        for worker in workers:
            free.put(worker)
        pool = ThreadPoolExecutor(count, thread_name_prefix="make-files")
        try:
            for ids, answer in zip(shares, pool.map(make, shares), strict=True):
                if "errno" in answer:
                    failure = OSError(answer["errno"], os.strerror(answer["errno"]), answer["path"])
                    raise disk_error(failure, {"cache_dir": tree}, needed_bytes)
                yield from zip(ids, answer["files"], strict=True)
        finally:
            # The threads wait for the answers of workers, which have nothing to save.
            for worker in workers:
                worker.signal(signal.SIGKILL)
            pool.shutdown(cancel_futures=True)


def write_file(path: Path, content: Content | Iterable[Content]) -> tuple[int, str]:
    """Write a file and its folders; return its size in bytes and the SHA-256 of its bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    size, digest = 0, hashlib.sha256()
    with path.open("wb", buffering=0) as file:
        for part in (content,) if isinstance(content, Content) else content:
            view = memoryview(part).cast("B")
            digest.update(view)
            size += len(view)
            while len(view):  # a single write stops at 2 GiB
                view = view[file.write(view) :]
    return size, digest.hexdigest()


def main() -> None:
    """Make samples for the process that started this one, until it closes stdin."""
    job = json.loads(sys.argv[1])
    module, name = job["kind"]
    dataset = getattr(importlib.import_module(module), name)(**job["recipe"])
    tree = Path(job["folder"])

    def make(ids: Sequence[int]) -> dict[str, Any]:
        made: list[Files] = []
        for sample_id in ids:
            made.append({})
            for relative, content in dataset.files(sample_id):
                try:
                    made[-1][relative] = write_file(tree / relative, content)
                except OSError as error:
                    return {"errno": error.errno, "path": str(tree / relative)}
        return {"files": made}

    Answers({"make": make}).run()


if __name__ == "__main__":
    main()
