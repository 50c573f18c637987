"""What this host's NTP daemon, or the kernel, believes of its own clock."""

from __future__ import annotations

import ctypes
import os
import shutil
import struct
import subprocess
from typing import Final, NamedTuple

from energymon.clock.monotonic import NS
from energymon.errors import ClockError
from energymon.reading import ClockOffset

_FIELDS: Final = 14
"""Fields of `chronyc -c tracking`: reference, its name, stratum, reference time, system time, last offset, RMS
offset, frequency, residual frequency, skew, root delay, root dispersion, update interval, leap status."""

_TIMEX: Final = struct.Struct("@illlli")
"""Begin of struct timex of linux/timex.h: modes, offset, freq, maxerror, esterror, status."""
_STA_UNSYNC: Final = 0x0040
_TIME_ERROR: Final = 5
_NTP_LIMIT_US: Final = 16_000_000
"""The kernel's greatest maximum error, 16 s; it says nothing then (linux/timex.h, NTP_PHASE_LIMIT)."""


class _Belief(NamedTuple):
    """What one of them believes: UTC minus this host's clock and the bound of the error, ns, and a line for people."""

    peer: str
    offset_ns: int
    error_ns: int
    text: str


def clock_state() -> list[str]:
    """Return how far this host's clock is known to be from UTC, a line each, for people."""
    problems: list[str] = []
    belief = _ask(problems)
    return problems if belief is None else [*problems, belief.text]


def ntp_offset(node: str, now_ns: int) -> ClockOffset | None:
    """Return UTC minus this host's clock as chronyd, or else the kernel, believes; None when neither knows.

    chronyd's error bound is root delay / 2 + root dispersion (chronyc(1), tracking); the kernel's is its maximum
    error, which the NTP daemon sets (adjtimex(2)). The peer is "chrony" or "kernel".
    """
    belief = _ask([])
    return None if belief is None else ClockOffset(now_ns, node, belief.peer, belief.offset_ns, belief.error_ns)


def _ask(problems: list[str]) -> _Belief | None:
    """Return what chronyd, or else the kernel, believes; adds why one of them believes nothing to `problems`."""
    for ask in (_chrony, _kernel):
        try:
            if (belief := ask()) is not None:
                return belief
        except ClockError as error:
            problems.append(str(error))
    return None


def _chrony() -> _Belief | None:
    """Ask chronyd; None where there is no chrony. Raises ClockError where it does not answer or is not synchronised."""
    chronyc = shutil.which("chronyc")
    if chronyc is None:
        return None
    argv = [chronyc, "-c", "tracking"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=2.0, check=False, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ClockError(f"chrony: {chronyc} does not answer ({error})") from error
    output = (done.stdout.strip() or done.stderr.strip()).splitlines()
    if done.returncode or not output:
        reason = output[0] if output else f"status {done.returncode}"
        raise ClockError(f"chrony: {chronyc} does not answer ({reason}); start chronyd, or run as a user it answers")
    fields = output[-1].split(",")
    try:
        source, stratum, offset_s = fields[1] or fields[0], int(fields[2]), float(fields[4])
        error_s = float(fields[10]) / 2 + float(fields[11])
        is_synchronised = fields[_FIELDS - 1] != "Not synchronised"
    except (ValueError, IndexError) as error:
        raise ClockError(
            f"chrony: {output[-1]!r} is not what `chronyc -c tracking` prints: {_FIELDS} fields"
        ) from error
    if not is_synchronised:
        raise ClockError("chrony: not synchronised; give chronyd a server that it can reach (chronyc sources)")
    text = (
        f"chrony: synchronised to {source} (stratum {stratum}), system clock {offset_s * 1e3:+.3f} ms from NTP "
        f"time, ±{error_s * 1e3:.3f} ms from UTC"
    )
    return _Belief("chrony", round(offset_s * NS), round(error_s * NS), text)


def _kernel() -> _Belief:
    """Ask the kernel; raises ClockError where its clock is not synchronised."""
    timex = ctypes.create_string_buffer(512)  # more than it takes
    state = ctypes.CDLL(None, use_errno=True).adjtimex(timex)
    if state < 0:
        raise ClockError(f"adjtimex: {os.strerror(ctypes.get_errno())}; the kernel does not give its clock's state")
    _, _, _, max_error_us, estimated_us, status = _TIMEX.unpack_from(timex)
    if state == _TIME_ERROR or status & _STA_UNSYNC or max_error_us >= _NTP_LIMIT_US:
        remedy = "install chrony, or start another NTP daemon, on every host of an experiment"
        raise ClockError(f"kernel: the clock is not synchronised; {remedy}")
    error = f"at most {max_error_us / 1e3:.3f} ms, estimated {estimated_us / 1e3:.3f} ms"
    text = f"kernel: synchronised by an NTP daemon, error {error}"
    return _Belief("kernel", 0, max_error_us * 1000, text)
