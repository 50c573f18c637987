"""Child processes that die with the harness, and their orderly end."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

__all__ = ["end", "spawn"]

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def _die_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def spawn(argv: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """Start a child in a process group of its own that the kernel kills when this process dies."""
    return subprocess.Popen(argv, preexec_fn=_die_with_parent, start_new_session=True, **options)  # noqa: PLW1509


def end(process: subprocess.Popen[Any], *, timeout_s: float) -> int:
    """End a child and its process group: SIGTERM, then SIGKILL after `timeout_s`; returns its status."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=timeout_s)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    return process.wait()
