"""What this host's NTP daemon, or the kernel, believes of its own clock."""

from __future__ import annotations

import ctypes
import os
import shutil
import struct
import subprocess
from contextlib import suppress
from typing import Final

from energymon.clock.monotonic import NS
from energymon.errors import ClockError
from energymon.reading import ClockOffset

_TIMEOUT_S: Final = 2.0
_FIELDS: Final = 14
"""Fields of `chronyc -c tracking`: reference, its name, stratum, reference time, system time, last offset, RMS
offset, frequency, residual frequency, skew, root delay, root dispersion, update interval, leap status."""
_NOT_SYNCHRONISED: Final = "Not synchronised"

_TIMEX: Final = struct.Struct("@illlli")
"""Begin of struct timex of linux/timex.h: modes, offset, freq, maxerror, esterror, status."""
_TIMEX_BYTES: Final = 512
"""More than all of it takes."""
_STA_UNSYNC: Final = 0x0040
_TIME_ERROR: Final = 5
_NTP_LIMIT_US: Final = 16_000_000
"""The kernel's greatest maximum error, 16 s; it says nothing then (linux/timex.h, NTP_PHASE_LIMIT)."""

_REMEDY: Final = "install chrony, or start another NTP daemon, on every host of an experiment"


def clock_state() -> list[str]:
    """Return how far this host's clock is known to be from UTC, a line each, for people."""
    lines = []
    try:
        if (tracking := _tracking()) is not None:
            source, stratum, offset_s, error_s = tracking
            return [
                f"chrony: synchronised to {source} (stratum {stratum}), system clock {offset_s * 1e3:+.3f} ms from NTP "
                f"time, ±{error_s * 1e3:.3f} ms from UTC"
            ]
    except ClockError as error:
        lines.append(str(error))
    try:
        max_error_us, estimated_us = _kernel()
        lines.append(
            f"kernel: synchronised by an NTP daemon, error at most {max_error_us / 1e3:.3f} ms, estimated "
            f"{estimated_us / 1e3:.3f} ms"
        )
    except ClockError as error:
        lines.append(str(error))
    return lines


def ntp_offset(node: str, now_ns: int) -> ClockOffset | None:
    """Return UTC minus this host's clock as chronyd, or else the kernel, believes; None when neither knows.

    chronyd's error bound is root delay / 2 + root dispersion (chronyc(1), tracking); the kernel's is its maximum
    error, which the NTP daemon sets (adjtimex(2)). The peer is "chrony" or "kernel".
    """
    with suppress(ClockError):
        if (tracking := _tracking()) is not None:
            _, _, offset_s, error_s = tracking
            return ClockOffset(now_ns, node, "chrony", round(offset_s * NS), round(error_s * NS))
    with suppress(ClockError):
        max_error_us, _ = _kernel()
        return ClockOffset(now_ns, node, "kernel", 0, max_error_us * 1000)
    return None


def _tracking() -> tuple[str, int, float, float] | None:
    """Return chronyd's source and its stratum, NTP time minus the system clock and the bound of the error, s.

    None where there is no chrony. Raises ClockError where it does not say, or is not synchronised.
    """
    chronyc = shutil.which("chronyc")
    if chronyc is None:
        return None
    try:
        done = subprocess.run(
            [chronyc, "-c", "tracking"],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ClockError(f"chrony: {chronyc} does not answer ({error})") from error
    output = (done.stdout.strip() or done.stderr.strip()).splitlines()
    if done.returncode or not output:
        reason = output[0] if output else f"status {done.returncode}"
        raise ClockError(f"chrony: {chronyc} does not answer ({reason}); start chronyd, or run as a user it answers")
    fields = output[-1].split(",")
    try:
        if len(fields) < _FIELDS:
            raise ValueError
        found = fields[1] or fields[0], int(fields[2]), float(fields[4]), float(fields[10]) / 2 + float(fields[11])
    except ValueError as error:
        raise ClockError(
            f"chrony: {output[-1]!r} is not what `chronyc -c tracking` prints: {_FIELDS} fields"
        ) from error
    if fields[13] == _NOT_SYNCHRONISED:
        raise ClockError("chrony: not synchronised; give chronyd a server that it can reach (chronyc sources)")
    return found


def _kernel() -> tuple[int, int]:
    """Return the kernel's maximum and estimated error, us; raises ClockError where it is not synchronised."""
    timex = ctypes.create_string_buffer(_TIMEX_BYTES)
    state = ctypes.CDLL(None, use_errno=True).adjtimex(timex)
    if state < 0:
        raise ClockError(f"adjtimex: {os.strerror(ctypes.get_errno())}; the kernel does not give its clock's state")
    _, _, _, max_error_us, estimated_us, status = _TIMEX.unpack_from(timex)
    if state == _TIME_ERROR or status & _STA_UNSYNC or max_error_us >= _NTP_LIMIT_US:
        raise ClockError(f"kernel: the clock is not synchronised; {_REMEDY}")
    return max_error_us, estimated_us
