"""One core for the torch operations of a thread, in a process whose other threads use all of them."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import torch

__all__ = ["use_one_thread"]


def use_one_thread() -> None:
    """Have torch compute what this thread asks for in this thread alone, as its DataLoader has its workers do.

    `torch.set_num_threads` would set it for threads to come as well; OpenMP keeps the number by thread
    (OpenMP 5.2, omp_set_num_threads). Where torch came without OpenMP nothing happens.
    """
    # torch sets a new thread's number when it is first asked, to what the process was last told.
    torch.get_num_threads()
    for library in _mapped_files():
        if library.name.startswith(("libgomp", "libiomp5")):
            ctypes.CDLL(str(library)).omp_set_num_threads(1)


def _mapped_files() -> set[Path]:
    """Return the files that this process has mapped (proc_pid_maps(5)); a path may hold blanks, and any bytes."""
    lines = Path("/proc/self/maps").read_bytes().splitlines()
    fields = (line.split(maxsplit=5) for line in lines)
    return {Path(os.fsdecode(field[5])) for field in fields if len(field) == 6 and field[5].startswith(b"/")}
