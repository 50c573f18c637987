"""What this host's NTP daemon, or the kernel, believes of its own clock."""

from __future__ import annotations

import ctypes
import os
import shutil
import struct
import subprocess
from contextlib import suppress
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class _Tracking:
    """What chronyd says."""

    source: str
    stratum: int
    offset_s: float
    """NTP time minus the system clock."""
    error_s: float
    synchronised: bool


@dataclass(frozen=True, slots=True)
class _Kernel:
    """What adjtimex says."""

    max_error_us: int
    estimated_error_us: int
    synchronised: bool


def clock_state() -> list[str]:
    """Return how far this host's clock is known to be from UTC, a line each, for people."""
    lines = []
    try:
        tracking = _tracking()
    except ClockError as error:
        lines.append(str(error))
        tracking = None
    if tracking is not None:
        if tracking.synchronised:
            return [
                f"chrony: synchronised to {tracking.source} (stratum {tracking.stratum}), system clock "
                f"{tracking.offset_s * 1e3:+.3f} ms from NTP time, ±{tracking.error_s * 1e3:.3f} ms from UTC"
            ]
        lines.append("chrony: not synchronised; give chronyd a server that it can reach (chronyc sources)")
    lines.append(_kernel_state())
    return lines


def ntp_offset(node: str, now_ns: int) -> ClockOffset | None:
    """Return UTC minus this host's clock as chronyd, or else the kernel, believes; None when neither knows.

    chronyd's error bound is root delay / 2 + root dispersion (chronyc(1), tracking); the kernel's is its maximum
    error, which the NTP daemon sets (adjtimex(2)). The peer is "chrony" or "kernel".
    """
    with suppress(ClockError):
        tracking = _tracking()
        if tracking is not None and tracking.synchronised:
            return ClockOffset(now_ns, node, "chrony", round(tracking.offset_s * NS), round(tracking.error_s * NS))
    with suppress(ClockError):
        kernel = _kernel()
        if kernel.synchronised:
            return ClockOffset(now_ns, node, "kernel", 0, kernel.max_error_us * 1000)
    return None


def _tracking() -> _Tracking | None:
    """Ask chronyd; None where there is no chrony, ClockError where it does not say."""
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
        return _Tracking(
            fields[1] or fields[0],
            int(fields[2]),
            float(fields[4]),
            float(fields[10]) / 2 + float(fields[11]),
            fields[13] != _NOT_SYNCHRONISED,
        )
    except ValueError as error:
        raise ClockError(
            f"chrony: {output[-1]!r} is not what `chronyc -c tracking` prints: {_FIELDS} fields"
        ) from error


def _kernel_state() -> str:
    try:
        kernel = _kernel()
    except ClockError as error:
        return str(error)
    if not kernel.synchronised:
        return f"kernel: the clock is not synchronised; {_REMEDY}"
    return (
        f"kernel: synchronised by an NTP daemon, error at most {kernel.max_error_us / 1e3:.3f} ms, "
        f"estimated {kernel.estimated_error_us / 1e3:.3f} ms"
    )


def _kernel() -> _Kernel:
    """Ask the kernel, which any user may."""
    timex = ctypes.create_string_buffer(_TIMEX_BYTES)
    state = ctypes.CDLL(None, use_errno=True).adjtimex(timex)
    if state < 0:
        raise ClockError(f"adjtimex: {os.strerror(ctypes.get_errno())}; the kernel does not give its clock's state")
    _, _, _, max_error_us, estimated_error_us, status = _TIMEX.unpack_from(timex)
    known = state != _TIME_ERROR and not status & _STA_UNSYNC and max_error_us < _NTP_LIMIT_US
    return _Kernel(max_error_us, estimated_error_us, known)
