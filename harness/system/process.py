"""The processes of a run: they die with their parent, and are found again by the run's id."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import harness

RUN_VARIABLE = "JOULEFEED_RUN"
"""Environment variable by which the processes of a run are found, however often they forked."""
REAPER_VARIABLE = "JOULEFEED_REAPER"
"""The same for the run's reaper, which outlives the run's processes."""
KILL_TIMEOUT_S = 10.0
SURE_LOOKS = 2
LOOK_AGAIN_S = 0.02
_PROC = Path("/proc")


def run_environment(run_id: str) -> dict[str, str]:
    """Return the environment of a run's process: the caller's, the run's id, and the caller's packages."""
    environment = {**os.environ, RUN_VARIABLE: run_id}
    packages = str(Path(harness.__file__).parent.parent)
    search_path = environment.get("PYTHONPATH", "").split(os.pathsep)
    environment["PYTHONPATH"] = os.pathsep.join([packages, *(p for p in search_path if p and p != packages)])
    return environment


def processes_of_run(run_id: str, namespaces: Iterable[Path] = ()) -> list[int]:
    """Return the ids of living processes that carry the run's id or are in one of its network namespaces."""
    return _found(_membership(run_id, namespaces))


def _found(belongs: Callable[[int], bool]) -> list[int]:
    pids = sorted(int(entry.name) for entry in _PROC.iterdir() if entry.name.isdecimal())
    return [pid for pid in pids if pid != os.getpid() and belongs(pid)]


def kill_all(
    run_id: str, namespaces: Iterable[Path] = (), timeout_s: float = KILL_TIMEOUT_S, variable: str = RUN_VARIABLE
) -> list[int]:
    """Kill the run's processes until none is left; return the ids of those that were killed.

    `variable` is the one that names the run in their environment. Raises TimeoutError when some are still there after
    `timeout_s`; the message names them.
    """
    belongs = _membership(run_id, namespaces, variable)
    deadline = time.monotonic() + timeout_s
    killed: list[int] = []
    empty_looks = 0
    # A process may fork while its siblings are being killed, and has no environment for a moment while it executes
    # another program: hence the repeated look.
    while empty_looks < SURE_LOOKS:
        found = _found(belongs)
        if not found:
            empty_looks += 1
            time.sleep(LOOK_AGAIN_S)
            continue
        empty_looks = 0
        if time.monotonic() >= deadline:
            raise TimeoutError(f"processes {found} of run {run_id} do not die; see `ps -o pid,stat,wchan,args`")
        for pid in found:
            if kill_process(pid, belongs, deadline):
                killed.append(pid)
    return killed


def _membership(run_id: str, namespaces: Iterable[Path], variable: str = RUN_VARIABLE) -> Callable[[int], bool]:
    marker = f"\0{variable}={run_id}\0".encode()
    identities = set()
    for namespace in namespaces:
        with suppress(FileNotFoundError):
            identities.add(_identity(namespace))

    def belongs(pid: int) -> bool:
        with suppress(OSError):
            if marker in b"\0" + (_PROC / str(pid) / "environ").read_bytes() + b"\0":
                return True
        with suppress(OSError):
            return _identity(_PROC / str(pid) / "ns" / "net") in identities
        return False

    return belongs


def _identity(namespace: Path) -> tuple[int, int]:
    status = namespace.stat()
    return status.st_dev, status.st_ino


def kill_process(pid: int, belongs: Callable[[int], bool], deadline: float) -> bool:
    """Kill a process that `belongs`, wait for its end until `deadline` (monotonic); return whether it was killed."""
    # The descriptor keeps the process id from being reused meanwhile.
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        if not belongs(pid):
            return False
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        poller.poll(max(0.0, deadline - time.monotonic()) * 1e3)
        return True
    finally:
        os.close(descriptor)
