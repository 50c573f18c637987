"""The command `exec`: runs a command and prints what the host used meanwhile, as `perf stat` does."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any, Final

from energymon.agent.direct import Meter, Span
from energymon.clock.monotonic import NS, boot_ns
from energymon.errors import EnergyError, NoSensorError, OptionError
from joulefeed.signals import ignored

if TYPE_CHECKING:
    from energymon.agent.cpu_time import CpuShare
    from energymon.sensors.discover import SensorConfig

_PASSED: Final = (
    *(signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM),
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM),
)
_RESTORED: Final = (signal.SIGPIPE, signal.SIGXFSZ)
"""What Python ignores, and the command is not to."""
_SWITCH_S: Final = 0.0002
_REMEDY: Final = "`python -m energymon doctor` says what is missing, `--estimate missing` estimates the CPU's joules"


def run_exec(argv: list[str], config: SensorConfig, owner: str | None, json_file: str | None) -> int:
    """Run a command and print its joules on stderr; return its exit status.

    That is 127 for a command that is not there, 126 for one that cannot be run, and 128 and the number of the signal
    that ended it. `owner` is whose share of the CPU's joules is attributed; JSON is written to a file, or to stderr for
    "-". Raises OptionError, SensorError and OSError before the command runs.
    """
    argv = argv[1:] if argv[:1] == ["--"] else argv
    if not argv:
        raise OptionError("exec: expected a command, `python -m energymon exec -- COMMAND ARGUMENTS`")
    # print() would take stdout, the command's, for a stderr that is closed.
    errors = sys.stderr or open(os.devnull, "w")  # noqa: SIM115, PTH123
    # A file that cannot be written is found before the command has run for hours.
    out = errors if json_file in (None, "-") else open(json_file, "w")  # noqa: SIM115, PTH123
    # Where SIGCHLD is ignored, no child can be waited for.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [*_PASSED, signal.SIGCHLD])
    span, unknown = None, ""
    try:
        span = Meter(config=config).begin()
    except NoSensorError as error:
        unknown = f"{str(error).partition(chr(10))[0].rstrip(':')}; {_REMEDY}"
    share = None
    if owner is not None:
        from energymon.agent.cpu_time import CpuShare

        share = CpuShare(owner)
    began_ns = boot_ns()
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)
    try:
        pid = os.posix_spawnp(argv[0], argv, os.environ, setsigmask=mask, setsigdef=_RESTORED)
    except OSError as error:
        print(f"energymon: {argv[0]}: {error.strerror}", file=errors)
        return 127 if isinstance(error, FileNotFoundError) else 126
    # While the command runs, what shows its figures is imported; its end is still seen at once.
    sys.setswitchinterval(_SWITCH_S)
    importing = threading.Thread(target=importlib.import_module, args=("energymon.cli.query",), daemon=True)
    importing.start()
    status = _wait_for(pid)
    answer = {"command": argv, "status": status, "seconds": (boot_ns() - began_ns) / NS, "unknown": unknown}
    if span is not None:
        span.end()
    if share is not None:
        share.end()
    importing.join()
    try:
        _show(answer, span, share, out, as_json=json_file is not None)
    except OSError as error:
        with suppress(OSError):
            print(f"energymon: {json_file or 'stderr'}: {error}; the figures are lost", file=errors)
    return status


def _wait_for(pid: int) -> int:
    """Wait for a command, to which signals are passed on; return its exit status as a shell gives it."""
    while True:
        info = signal.sigwaitinfo([*_PASSED, signal.SIGCHLD])
        if info.si_signo != signal.SIGCHLD:
            # A terminal's Ctrl-C comes from the kernel and goes to the whole group, its hangup to the session's leader.
            if info.si_code <= 0 or (info.si_signo == signal.SIGHUP and os.getsid(0) == os.getpid()):
                os.kill(pid, info.si_signo)
        elif (done := os.waitpid(pid, os.WNOHANG))[0]:
            status = os.waitstatus_to_exitcode(done[1])
            return status if status >= 0 else 128 - status


def _show(answer: dict[str, Any], span: Span | None, share: CpuShare | None, out: IO[str], *, as_json: bool) -> None:
    """Print the figures of a command that has ended, or why there are none."""
    import json
    import shlex
    from dataclasses import asdict

    from energymon.cli.query import figures

    found = part = None
    try:
        found = None if span is None else span.meter.energy(span)
        part = None if found is None or share is None else share.of(found)
    except EnergyError as error:
        answer["unknown"] = str(error)
    if as_json:
        text = json.dumps({**answer, "energy": found and found.to_json(), "attributed": part and asdict(part)})
    else:
        lines = [f"energymon: {shlex.join(answer['command'])}: {answer['seconds']:.6f} s, status {answer['status']}"]
        lines += [] if found is None else figures(found)
        lines += [] if part is None else [f"  {part}"]
        text = "\n".join([*lines, *([f"energymon: {answer['unknown']}"] if answer["unknown"] else [])])
    print(text, file=out, flush=True)
