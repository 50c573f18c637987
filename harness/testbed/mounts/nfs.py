"""A remote mount as the papers have it: the kernel's NFSv4 server and client, each in its namespace."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from harness.errors import MountError, TestbedError
from harness.system.procfs import kernel_threads
from harness.testbed.base import Node, admin_path, missing_tools
from harness.testbed.link.namespace import run_in
from harness.testbed.mounts.table import mounted, wait_for_line
from harness.testbed.unprivileged import outer_identity

if TYPE_CHECKING:
    from harness.config.regime import Regime


FILE_SYSTEMS = Path("/proc/filesystems")
KERNEL_PARTS = (("nfs4", "nfsv4", "client"), ("nfsd", "nfsd", "server"))
"""File system, module and role of each half."""
THREADS = 8
"""The default of nfs-utils."""
SERVER_START_S = 60.0
MOUNT_BASE_S = 60.0
MOUNT_ROUND_TRIPS = 60
OPTIONS = "ro,vers=4.2,proto=tcp,nosharecache,actimeo=604800,softerr,timeo=150,retrans=3,retry=0"
"""Attributes are kept for good, since the data is read-only; a dead link ends in an error, not in a hang."""

SERVE = """
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
mount -t tmpfs -o mode=755 tmpfs /var/lib/nfs
mkdir /var/lib/nfs/nfsdcld /var/lib/nfs/rpc_pipefs
: >/var/lib/nfs/etab; : >/var/lib/nfs/rmtab
mount -t rpc_pipefs sunrpc /var/lib/nfs/rpc_pipefs
nfsdcld --foreground --pipefsdir=/var/lib/nfs/rpc_pipefs --storagedir=/var/lib/nfs/nfsdcld &
tries=200
until [ -s /var/lib/nfs/nfsdcld/main.sqlite ] || [ $((tries -= 1)) -eq 0 ]; do sleep 0.05; done
mount --bind "$1" "$2"
mount -t nfsd nfsd /proc/fs/nfsd
exportfs -o ro,fsid=0,no_root_squash,no_subtree_check,insecure,sec=sys "$3:$2"
rpc.nfsd --no-nfs-version 3 --nfs-version 4 --no-udp --host "$4" "$5"
echo serving files
exec rpc.mountd --foreground --no-nfs-version 3 --no-udp
"""
"""In a mount namespace of its own, so that neither the export nor its bookkeeping meets the machine's own.

nfsdcld knows of no client from before, which spares this server the grace period of 90 s in which none may open a file;
its database is there once it listens.
"""

STOP = """
mount -t nfsd nfsd /proc/fs/nfsd
echo 0 >/proc/fs/nfsd/threads
for cache in auth.unix.ip auth.unix.gid nfsd.fh nfsd.export; do
    if [ -w /proc/net/rpc/$cache/flush ]; then date +%s >/proc/net/rpc/$cache/flush; fi
done
"""
"""The server is the kernel's own threads: they end by this command alone, and would keep their namespace alive."""


_HAS_CLIENT = """
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
grep -qw nfs4 /proc/filesystems || modprobe --quiet nfsv4 || { echo "its kernel has no NFS client" >&2; exit 1; }
command -v mount.nfs4 >/dev/null || { echo "mount.nfs4 is not installed: apt-get install nfs-common" >&2; exit 1; }
"""


def nfs_obstacles() -> list[str]:
    """Return what this machine lacks for the mount, each with its remedy; empty when nothing is missing."""
    found = [
        f"this kernel has no NFS {role} (module {module})"
        for file_system, module, role in KERNEL_PARTS
        if not (_kernel_has(file_system) or _modprobe(module, "--dry-run"))
    ]
    packages = {
        "mount.nfs4": "nfs-common",
        "rpc.nfsd": "nfs-kernel-server",
        "nfsdcld": "nfs-kernel-server",
        "rpc.mountd": "nfs-kernel-server",
        "exportfs": "nfs-kernel-server",
    }
    found += missing_tools(packages, admin_path())
    if os.geteuid() != 0 or outer_identity()[0] != 0:
        found.append("kernel NFS needs root outside any user namespace")
    return found


class NfsMounter:
    """Mounts directories of the storage node on the compute node through kernel NFSv4.

    An NFS server of the run's own exports a place in `folder`, which is private to this user. Without one the storage
    host's own server does: site.yml has it export the folder of its data.

    Raises MountError when the kernel's modules do not load.
    """

    kind: Literal["nfs4"] = "nfs4"

    def __init__(self, storage: Node, compute: Node, folder: Path | None) -> None:
        self._storage, self._compute = storage, compute
        self._exported = None if folder is None else folder / "export"
        if self._exported is not None:
            self._exported.mkdir()
            for file_system, module, role in KERNEL_PARTS:
                if not (_kernel_has(file_system) or (_modprobe(module) and _kernel_has(file_system))):
                    raise MountError(f"the kernel's NFS {role} does not load: see modprobe {module}")

    @contextmanager
    def mount(self, root: Path, point: Path, regime: Regime) -> Iterator[tuple[int, ...]]:
        """Mount `root` of the storage node at `point`, which is made, for as long as the context lasts.

        Yields the server's kernel threads, where it is the run's own. The client's work is done by the processes that
        read, and by threads of the kernel that serve others too. Raises MountError when the server does not start, or
        does not let the client in.
        """
        timeout_s = MOUNT_BASE_S + MOUNT_ROUND_TRIPS * regime.rtt_ms / 1e3
        source = f"{self._storage.address}:{root if self._exported is None else '/'}"
        tool = "mount.nfs4" if self._compute.is_remote else shutil.which("mount.nfs4", path=admin_path())
        argv = [tool or "mount.nfs4", source, str(point), "-o", OPTIONS]
        with ExitStack() as stack:
            if self._exported is not None:
                stack.enter_context(self._server(root, self._exported))
            stack.enter_context(mounted(self._compute, argv, point, timeout_s))
            yield () if self._exported is None else kernel_threads("nfsd")

    def describe(self) -> dict[str, object]:
        """Describe the mount."""
        server = {"server": f"the NFS server of host {self._storage.host}"}
        return {"kind": self.kind, "options": OPTIONS, **({"server_threads": THREADS} if self._exported else server)}

    @contextmanager
    def _server(self, root: Path, exported: Path) -> Iterator[None]:
        arguments = [str(root), str(exported), self._compute.address, self._storage.address, str(THREADS)]
        argv = ["unshare", "--mount", "--", "sh", "-eu", "-c", SERVE, "sh", *arguments]
        with self._storage.start(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as server:
            try:
                wait_for_line(server, b"serving files", SERVER_START_S, f"the NFS server of {root}")
                yield
            finally:
                stop_nfs_server(Path(str(self._storage.namespace)))


def export_obstacles(storage: Node, compute: Node) -> list[str]:
    """Return why a host cannot mount what the NFS server of another host exports; empty when it can."""
    found = []
    try:
        compute.run(["sh", "-c", _HAS_CLIENT])
    except TestbedError as error:
        found.append(str(error))
    try:
        running = storage.run(["cat", "/proc/fs/nfsd/threads"]).strip() not in ("", "0")
    except TestbedError:
        running = False
    return found if running else [*found, f"host {storage.host} runs no kernel NFS server"]


def stop_nfs_server(namespace: Path) -> None:
    """Stop the kernel's NFS server of a network namespace, if it has one. Raises TestbedError when that fails."""
    if _kernel_has("nfsd"):
        run_in(str(namespace), ["unshare", "--mount", "--", "sh", "-eu", "-c", STOP])


def _modprobe(module: str, *options: str) -> bool:
    try:
        return subprocess.run(["modprobe", "--quiet", *options, module], check=False).returncode == 0
    except OSError:
        # A machine without modprobe has all of its kernel built in.
        return False


def _kernel_has(file_system: str) -> bool:
    return file_system in FILE_SYSTEMS.read_text().split()
