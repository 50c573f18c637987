"""Every private name of torch and DALI that the loaders use, in one place.

`tests/loaders/test_compat.py` fails by the name that an upgrade takes away. Names are looked up where they are used, so
that a missing one costs a message and not the import of a loader that does not need it.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Final, TypeVar, cast

import torch._utils
from torch.utils.data import DataLoader
from torch.utils.data._utils import collate as torch_collate
from torch.utils.data._utils import worker as torch_worker
from torch.utils.data._utils.pin_memory import pin_memory as torch_pin_memory
from torch.utils.data.dataloader import _BaseDataLoaderIter, _SingleProcessDataLoaderIter

from loaders.errors import LoaderConfigError

T = TypeVar("T")
ExceptionWrapper = torch._utils.ExceptionWrapper
BaseIterator = _BaseDataLoaderIter
InProcessIterator = _SingleProcessDataLoaderIter

TIMEOUT_PREFIX: Final = "DataLoader timed out after"
"""How torch's RuntimeError for a batch that is late begins; torch has no type for it."""
DEATH_PREFIX: Final = "DataLoader worker (pid"
"""How torch's RuntimeError for a worker that died begins."""

SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108
_MAX_SOCKET_PATH: Final = 107
"""Bytes of a Unix socket's path (sun_path in unix(7), less the zero byte at its end)."""


def iterator_workers(iterator: object) -> list[BaseProcess]:
    """Return the worker processes of a DataLoader's iterator; none where it loads in this process."""
    return list(getattr(iterator, "_workers", ()))


def end_iterator(iterator: object) -> None:
    """End the threads and queues of a DataLoader's iterator whose workers have ended."""
    if hasattr(iterator, "_shutdown_workers"):
        if iterator_workers(iterator):
            # A worker that ended while it looked at this event holds its lock, and torch would wait for that.
            iterator._workers_done_event = multiprocessing.Event()  # type: ignore[attr-defined]
        iterator._shutdown_workers()


def drop_iterator(loader: DataLoader[T]) -> None:
    """Have a DataLoader with persistent workers start new ones for its next epoch."""
    loader._iterator = None


def shared_memory_of(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the descriptor and the bytes of the shared memory that a tensor is in; it is moved there if need be.

    The descriptor is the tensor's and is closed with it.
    """
    descriptor, nbytes = tensor.untyped_storage()._share_fd_cpu_()
    return int(descriptor), int(nbytes)


def remove_memory(workers: Iterable[BaseProcess]) -> None:
    """Remove the shared memory that workers which have ended left in the midst of making a batch."""
    for worker in workers:
        # How torch names a batch's memory in the moment between its making and its unlinking.
        for memory in SHARED_MEMORY.glob(f"torch_{worker.pid}_*"):
            memory.unlink(missing_ok=True)


def check_socket_paths(below: str = "") -> None:
    """Raise LoaderConfigError where paths of sockets in the folder for temporary files would be too long.

    `below` is the name of a folder in it whose sockets they are, none for the sockets of this process.

    Batches come through such sockets. torch prints the failure in a thread of the worker, and the batch never comes.
    """
    folder = tempfile.gettempdir()
    most = _MAX_SOCKET_PATH - len(below and f"/{below}") - len("/pymp-12345678/listener-12345678")
    if len(os.fsencode(folder)) > most:
        raise LoaderConfigError(
            f"TMPDIR={folder}: expected a path of at most {most} bytes, for the workers' "
            "sockets; set TMPDIR to a shorter one, such as /tmp"
        )


def pin_memory(batch: object) -> object:
    """Return a batch of any structure in page-locked memory."""
    return cast(object, torch_pin_memory(batch))  # type: ignore[no-untyped-call]


def has_own_collations() -> bool:
    """Return whether the user has added functions to those by which torch collates each type."""
    return any(each.__module__ != torch_collate.__name__ for each in torch_collate.default_collate_fn_map.values())


def enter_worker(worker: int, workers: int, seed: int, dataset: object) -> None:
    """Have `torch.utils.data.get_worker_info` describe this process."""
    info: Callable[..., torch_worker.WorkerInfo] = torch_worker.WorkerInfo
    torch_worker._worker_info = info(id=worker, num_workers=workers, seed=seed, dataset=dataset)


@contextmanager
def outside_worker() -> Iterator[None]:
    """Have `default_collate` stack into usual memory: in a worker it would make files in shared memory."""
    info, torch_worker._worker_info = torch_worker._worker_info, None
    try:
        yield
    finally:
        torch_worker._worker_info = info


def worker_seed(base_seed: int, worker: int) -> Sequence[int]:
    """Return what torch seeds NumPy with in a worker."""
    seed: Sequence[int] = torch_worker._generate_state(base_seed, worker)  # type: ignore[no-untyped-call]
    return seed


def end_pipeline(pipeline: object | None) -> None:
    """End a DALI pipeline and its threads now: a Ctrl-C that comes while its `__del__` does so would be lost."""
    if pipeline is not None:
        pipeline._shutdown()  # type: ignore[attr-defined]
