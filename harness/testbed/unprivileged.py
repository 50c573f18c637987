"""Runs the testbed without root, in a user namespace of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

INSIDE_VARIABLE = "JOULEFEED_USER_NAMESPACE"
"""Set inside, so that a namespace that turns out to be of no use is not nested without end."""
UNSHARE = ["unshare", "-Urnm", "--map-root-user", "--propagation", "slave"]
# `ip netns` and the run's state need a writable /run; a daemon is tried on the loopback interface.
SET_UP = 'mount -t tmpfs -o mode=755 tmpfs /run && ip link set lo up && exec "$@"'
DEVICES = (Path("/dev/net/tun"), Path("/dev/fuse"))
_CAPABILITIES = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21}  # linux/capability.h


def reexec_unprivileged(argv: Sequence[str]) -> None:
    """Replace this process, started by `argv`, by itself as root of a user namespace, where it lacks root.

    Returns only where that is not needed or not possible; opening a testbed then says what is missing.
    """
    if not namespace_obstacles() or INSIDE_VARIABLE in os.environ or os.geteuid() == 0:
        return
    if user_namespace_obstacles():
        return
    environment = {**os.environ, INSIDE_VARIABLE: "1"}
    os.execvpe("unshare", [*UNSHARE, "sh", "-c", SET_UP, "sh", *argv], environment)  # noqa: S606  no shell is needed


def namespace_obstacles() -> list[str]:
    """Return why this process may not make network namespaces; empty when it may."""
    effective = next(
        int(line.split()[1], 16)
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("CapEff:")
    )
    lacking = [name for name, bit in _CAPABILITIES.items() if not effective >> bit & 1]
    if not lacking:
        return []
    who = "root lacks" if os.geteuid() == 0 else "this user lacks"
    remedy = "start the container with --privileged" if os.geteuid() == 0 else "run as root or with sudo"
    return [f"{who} {' and '.join(lacking)}: {remedy}"]


def user_namespace_obstacles() -> list[str]:
    """Return why the testbed cannot run in a user namespace here, each with its remedy; empty when it can."""
    if shutil.which("unshare") is None:
        return ["unshare is not installed: apt-get install util-linux"]
    found = []
    tried = subprocess.run([*UNSHARE, "sh", "-c", SET_UP, "sh", "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        found.append(
            f"user namespaces: {tried.stderr.strip()}: sysctl kernel.unprivileged_userns_clone=1 and, on Ubuntu, "
            "kernel.apparmor_restrict_unprivileged_userns=0"
        )
    for device in DEVICES:
        if not os.access(device, os.R_OK | os.W_OK):
            found.append(f"{device} may not be opened by this user: chmod 666 {device}")
    return found


def outer_identity() -> tuple[int, int]:
    """Return the user and group ids that this process has outside its user namespace, if it is in one."""
    return _outer("uid", os.geteuid()), _outer("gid", os.getegid())


def _outer(which: str, inner: int) -> int:
    for line in Path(f"/proc/self/{which}_map").read_text().splitlines():
        inside, outside, count = map(int, line.split())
        if inside <= inner < inside + count:
            return outside + inner - inside
    return inner
