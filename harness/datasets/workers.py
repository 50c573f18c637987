"""The processes that make the samples of a dataset, each taking the next sample when it has made one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import numpy as np

from harness.datasets.cache import storage_errors
from harness.datasets.recipe import Recipe
from harness.datasets.worker import ID
from harness.errors import DatasetError
from harness.testbed.process import dying_with_parent, end_group

__all__ = ["made_by_workers"]

_MOST_WORKERS: Final = 32
_LEAST_SHARE_BYTES: Final = 100_000
"""Bytes below which a further process costs more than it brings."""


def made_by_workers(recipe: Recipe, tree: Path, needed_bytes: int) -> Iterator[dict[str, Any]]:
    """Make the files of all samples below `tree`; yield what is said of each, in the order in which they are done.

    That is `id`, `files` (sizes in bytes by path) and `sha256` of their content. Raises DatasetError when the disk is
    full or a process dies.
    """
    cores = len(os.sched_getaffinity(0))
    rows = -(-recipe.samples // recipe.together)
    count = max(1, min(cores, _MOST_WORKERS, rows, needed_bytes // _LEAST_SHARE_BYTES))
    kind = [type(recipe).__module__, type(recipe).__qualname__]
    job = json.dumps({"kind": kind, "recipe": asdict(recipe), "folder": str(tree)})
    reader, writer = os.pipe()
    with ExitStack() as stack:
        lines = stack.enter_context(os.fdopen(reader, "rb"))
        workers: list[subprocess.Popen[bytes]] = []
        try:
            ids = stack.enter_context(_handed_out(recipe))
            for _ in range(count):
                worker = subprocess.Popen(
                    dying_with_parent([sys.executable, "-m", "harness.datasets.worker", job]),
                    stdin=ids,
                    stdout=writer,
                    start_new_session=True,  # Ctrl-C is for the parent to handle
                )
                stack.callback(end_group, worker)
                workers.append(worker)
        finally:
            os.close(writer)
        for line in lines:
            said = json.loads(line)
            if "errno" in said:
                with storage_errors(tree, needed_bytes):
                    raise OSError(said["errno"], os.strerror(said["errno"]), said["path"])
            yield said
            for worker in workers:
                if worker.poll() not in {None, 0}:
                    raise _died(worker, recipe.noun)
        for worker in workers:
            if worker.wait():
                raise _died(worker, recipe.noun)


@contextmanager
def _handed_out(recipe: Recipe) -> Iterator[int]:
    """Yield a file of the first id of every row; heirs share its position, so that each reads others."""
    file = os.memfd_create("sample-ids", os.MFD_CLOEXEC)
    try:
        with open(file, "wb", closefd=False) as ids:
            ids.write(np.arange(0, recipe.samples, recipe.together, dtype=ID).tobytes())
        os.lseek(file, 0, os.SEEK_SET)
        yield file
    finally:
        os.close(file)


def _died(worker: subprocess.Popen[bytes], noun: str) -> DatasetError:
    status = worker.returncode
    how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
    return DatasetError(f"process {worker.pid}, which makes {noun}, {how}; is there enough memory? Run again")
