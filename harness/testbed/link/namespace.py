"""The two network namespaces of a link: their addresses and interface, and calls inside one of them."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from harness.errors import TestbedError

INTERFACE = "jf0"
"""Name of the link's interface in both namespaces."""
STORAGE_ADDRESS = "10.77.0.1"
COMPUTE_ADDRESS = "10.77.0.2"
MTU = 1500
"""Bytes of an IP packet; a larger one would enlarge TCP's initial window and make cold fetches too quick."""
ETHERNET_HEADER_BYTES = 14

CLONE_NEWNET = 0x40000000  # linux/sched.h
TOOL_TIMEOUT_S = 20.0

T = TypeVar("T")


def enter(namespace: str) -> None:
    """Move the calling thread, and only it, into the network namespace.

    Raises TestbedError when there is no such namespace, or no permission to enter it.
    """
    try:
        descriptor = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise TestbedError(
            f"network namespace {namespace}: {error.strerror}; expected one made by `ip netns add`"
        ) from error
    try:
        if ctypes.CDLL(None, use_errno=True).setns(descriptor, CLONE_NEWNET):
            reason = os.strerror(ctypes.get_errno())
            raise TestbedError(f"network namespace {namespace}: {reason}; entering it needs CAP_SYS_ADMIN (root)")
    finally:
        os.close(descriptor)


def inside(namespace: str | None, action: Callable[[], T]) -> T:
    """Call `action` in a thread of its own inside the namespace, None for the caller's; return or raise what it does.

    A socket that is made there stays in that namespace, whichever thread uses it later.
    """

    def visit() -> T:
        if namespace is not None:
            enter(namespace)
        return action()

    # The thread ends here: none other enters the namespace.
    with ThreadPoolExecutor(1, thread_name_prefix=f"inside-{Path(namespace or '').name}") as thread:
        return thread.submit(visit).result()


def run_in(namespace: str | None, argv: Sequence[str], *, stdin: str | None = None) -> str:
    """Run a tool inside the namespace, None for the caller's, and return its standard output.

    Raises TestbedError when the tool is missing, fails or takes longer than 20 s; the message has its output.
    """
    command = ["nsenter", f"--net={namespace}", "--", *argv] if namespace else argv
    what = f"{' '.join(argv)} in {namespace}" if namespace else " ".join(argv)
    try:
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=TOOL_TIMEOUT_S, check=False)
    except FileNotFoundError as error:
        raise TestbedError(f"{error.filename} is not installed: apt-get install util-linux iproute2") from error
    except subprocess.TimeoutExpired as error:
        raise TestbedError(f"{what}: no answer within {TOOL_TIMEOUT_S:g} s") from error
    if done.returncode:
        reason = (done.stderr or done.stdout).strip() or f"exit status {done.returncode}"
        raise TestbedError(f"{what}{f' <<< {stdin.strip()}' if stdin else ''}: {reason}")
    return done.stdout


def write_sysctl(namespace: str | None, key: str, value: str) -> str | None:
    """Set a `net.*` sysctl of the namespace; return None, or the reason where the kernel refuses."""
    path = Path("/proc/sys") / key.replace(".", "/")

    def write() -> str | None:
        try:
            path.write_text(value)
        except OSError as error:
            return error.strerror or str(error)
        return None

    return inside(namespace, write)
