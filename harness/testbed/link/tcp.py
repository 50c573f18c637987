"""TCP settings of a namespace that carries a long fat link, and which congestion control it ended with."""

from __future__ import annotations

import time
from pathlib import Path

from harness.errors import TestbedError
from harness.testbed.link.namespace import inside, write_sysctl

CONGESTION_CONTROL = "cubic"
"""What Linux distributions use by default; bbr would pace small replies and slow cold fetches."""

BUFFER_MAX_BYTES = 64 * 1024 * 1024
"""One flow's window must hold rate x RTT; the usual 4 MB caps a flow at about 1 Gbit/s at 30 ms."""

OUTPUT_LIMIT_BYTES = 128 * 1024
"""What one flow may have queued below TCP. The default of 4 MB would be a standing queue of several ms under load."""

SYSCTLS = {
    "net.ipv4.tcp_limit_output_bytes": str(OUTPUT_LIMIT_BYTES),
    "net.ipv4.tcp_rmem": f"4096 131072 {BUFFER_MAX_BYTES}",
    "net.ipv4.tcp_wmem": f"4096 16384 {BUFFER_MAX_BYTES}",
    # Slow flows would be cut into packets of 3 kB, and the relay's cost is per packet.
    "net.ipv4.tcp_min_tso_segs": "16",
    # A cell must not start from the window that an earlier cell's connections had reached.
    "net.ipv4.tcp_no_metrics_save": "1",
    # Loaders, daemons and mounts keep their connections from epoch to epoch; the pause between two epochs of a long
    # training is no pause at all, and one of a benchmark must not close the window again.
    "net.ipv4.tcp_slow_start_after_idle": "0",
    # Router and listener announcements would be counted as traffic of the link.
    "net.ipv6.conf.all.disable_ipv6": "1",
    "net.ipv6.conf.default.disable_ipv6": "1",
}
OPTIONAL = frozenset(key for key in SYSCTLS if key.startswith("net.ipv6"))

RECORDED = ("net.ipv4.tcp_congestion_control", *(key for key in SYSCTLS if key not in OPTIONAL))
AVAILABLE = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
ALLOWED = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
ATTEMPTS = 5


def tune_tcp(namespace: str) -> list[str]:
    """Set the namespace's TCP buffers and congestion control; return a note for each that was refused."""
    notes = []
    for key, value in SYSCTLS.items():
        reason = write_sysctl(namespace, key, value)
        if reason is not None and key not in OPTIONAL:
            notes.append(f"{key} stays as it was: {reason}")
    reason = _choose_congestion_control(namespace, CONGESTION_CONTROL)
    if reason is not None:
        notes.append(
            f"congestion control is not {CONGESTION_CONTROL}: {reason}; as root, "
            f"`sysctl net.ipv4.tcp_allowed_congestion_control` of the host must name it"
        )
    return notes


def choose_congestion(namespace: str | None, congestion: str) -> None:
    """Give the namespace's connections a congestion control.

    Raises TestbedError when the kernel has none of that name, or it may not be chosen.
    """
    reason = _choose_congestion_control(namespace, congestion)
    if reason is not None:
        raise TestbedError(
            f"testbed.congestion={congestion}: {reason}; this kernel has {AVAILABLE.read_text().strip()} "
            f"(modprobe tcp_{congestion} may add it), and {ALLOWED} must name it where this is not the machine's root"
        )


def read_tcp(namespace: str | None) -> dict[str, str]:
    """Read the namespace's TCP settings that decide how quickly data flows."""

    def read() -> dict[str, str]:
        values = {}
        for key in RECORDED:
            path = Path("/proc/sys") / key.replace(".", "/")
            if path.exists():
                values[key] = " ".join(path.read_text().split())
        return values

    return inside(namespace, read)


def _choose_congestion_control(namespace: str | None, congestion: str) -> str | None:
    key = "net.ipv4.tcp_congestion_control"
    reason = write_sysctl(namespace, key, congestion)
    # A namespace may only choose what the host allows to all. The host's list is widened for the moment of
    # the choice; another run's restoring of it may come between, hence the attempts.
    for _ in range(ATTEMPTS):
        if reason is None:
            return None
        try:
            before = ALLOWED.read_text().strip()
            ALLOWED.write_text(f"{before} {congestion}")
        except OSError:
            return reason
        try:
            reason = write_sysctl(namespace, key, congestion)
        finally:
            ALLOWED.write_text(before)
        if reason is not None:
            time.sleep(0.02)
    return reason
