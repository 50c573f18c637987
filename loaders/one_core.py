"""One core for the torch operations of a thread, in a process whose other threads use all of them."""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch

__all__ = ["use_one_core"]


def use_one_core() -> None:
    """Have torch compute what this thread asks for in this thread alone, as its DataLoader has its workers do.

    `torch.set_num_threads` would set it for threads to come as well; OpenMP keeps the number by thread
    (OpenMP 5.2, omp_set_num_threads). Where torch came without OpenMP nothing happens.
    """
    # torch sets a new thread's number when it is first asked, to what the process was last told.
    torch.get_num_threads()
    maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    for library in {line.split()[-1] for line in maps if "/libgomp" in line or "/libiomp5" in line}:
        ctypes.CDLL(library).omp_set_num_threads(1)
