"""The end of a program that holds many objects: orderly, but the interpreter does not free them one by one."""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
from collections.abc import Callable
from typing import NoReturn


def run_to_end(program: Callable[[], int]) -> NoReturn:
    """Run a whole program, and end the process with the status that it returns.

    The program imports what it needs. After status 0 the process ends as soon as its threads are joined, the functions
    of `atexit` have run and all output is written. The interpreter would free every module and object first, which
    takes a second where torch is loaded, and which the kernel does at once. After another status or an exception the
    interpreter ends as usual.
    """
    is_whole = False

    def end() -> None:
        if is_whole:
            sys.stdout.flush()
            sys.stderr.flush()
            # What libraries wrote with C's stdio.
            ctypes.CDLL(None).fflush(None)
            os._exit(0)

    # The function that is registered first runs last.
    atexit.register(end)
    status = program()
    is_whole = status == 0
    sys.exit(status)
