"""A remote mount where the kernel has no NFS: sshfs over an SSH server and keys of the run's own."""

from __future__ import annotations

import itertools
import os
import pwd
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

from harness.config.regime import Regime
from harness.errors import MountError, TestbedError
from harness.testbed.base import Node, admin_path, missing_tools
from harness.testbed.mounts.table import mounted, wait_for_line
from harness.testbed.unprivileged import outer_identity
from joulefeed.child import GRACE_S, Child

FIRST_PORT = 2200
_PORTS: Final = itertools.count(FIRST_PORT)
CIPHER = "aes128-gcm@openssh.com"
"""The quickest one on CPUs with AES instructions; NFS has no such cost."""
SERVER_START_S = 20.0
CONNECT_BASE_S = 30.0
CONNECT_ROUND_TRIPS = 60
"""SSH's handshake takes about ten; loss may triple that."""
LONG_S = 7 * 24 * 3600
"""Attributes are kept for good: the data is read-only, and a network file system keeps them as well."""
PRIVILEGE_SEPARATION = Path("/run/sshd")
_MAKE_KEY: Final = 'mkdir -m 700 -p "$0"; exec ssh-keygen -q -t ed25519 -N "" -C joulefeed -f "$1"'
_LOOK = """
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
command -v sshd || { echo "sshd is not installed: apt-get install openssh-server" >&2; exit 1; }
if grep -qs "^$0:!" /etc/shadow; then echo locked; fi
if [ "$(id -u)" = 0 ] && [ -n "$1" ]; then mkdir -p -m 755 "$1"; fi
"""
"""Finds sshd; says whether the user's password is locked, as root's is on Ubuntu, where sshd needs PAM to let a key in;
makes the empty directory without which sshd does not start, as distributions do when their own service starts."""


def sshfs_obstacles() -> list[str]:
    """Return what this machine lacks for the mount, each with its remedy; empty when nothing is missing."""
    tools = {"sshfs": "sshfs", "ssh": "openssh-client", "ssh-keygen": "openssh-client"}
    # It need not run as a service.
    found = missing_tools(tools) + missing_tools({"sshd": "openssh-server"}, admin_path())
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        found.append(f"/dev/fuse: {error.strerror}: modprobe fuse; in a container start it with --device /dev/fuse")
    return found


class SshfsMounter:
    """Mounts directories of the storage node on the compute node through sshfs.

    `folder` is for keys and configuration, and private to this user; another host gets one of the same name.

    Raises MountError when the keys cannot be made, or this user has no name to log in with.
    """

    kind: Literal["sshfs"] = "sshfs"

    def __init__(self, storage: Node, compute: Node, folder: Path) -> None:
        self._storage, self._compute = storage, compute
        # Another host has a folder of its own; on this one both sides use the given one.
        self._own, self._there = own_folder(compute, folder), own_folder(storage, folder)
        uid = outer_identity()[0]
        try:
            self._user = pwd.getpwuid(uid).pw_name
        except KeyError as error:
            raise MountError(f"user {uid} has no entry in /etc/passwd, and sshd lets in only users who have") from error
        self._nested = os.geteuid() == 0 and uid != 0
        try:
            # A private key is made where it is used.
            for node, key in ((storage, self._there / "host_key"), (compute, self._own / "user_key")):
                node.run(["sh", "-euc", _MAKE_KEY, str(key.parent), str(key)])
            user_key = compute.run(["cat", str(self._own / "user_key.pub")])
            _write(storage, self._there / "user_key.pub", user_key)
            self._host_key = storage.run(["cat", str(self._there / "host_key.pub")])
            looked = storage.run(["sh", "-c", _LOOK, self._user, "" if self._nested else str(PRIVILEGE_SEPARATION)])
        except TestbedError as error:
            raise MountError(f"preparing the mount: {error}") from error
        self._sshd, _, locked = looked.strip().partition("\n")
        self._is_locked = locked == "locked"

    @contextmanager
    def mount(self, root: Path, point: Path, regime: Regime) -> Iterator[tuple[int, ...]]:
        """Mount `root` of the storage node at `point`, which is made, for as long as the context lasts.

        Yields the processes of this host that serve it. Raises MountError when the server does not start, or the mount
        does not come up.
        """
        # Several mounters may have a server on the same host.
        port = next(_PORTS)
        timeout_s = CONNECT_BASE_S + CONNECT_ROUND_TRIPS * regime.rtt_ms / 1e3
        with self._server(port) as server:
            config = self._client_config(port)
            argv = ["sshfs", "-f", "-F", str(config), "-o", self._options(), f"storage:{root}", str(point)]
            with mounted(self._compute, argv, point, timeout_s) as client_pid:
                processes = [(self._compute, client_pid), (self._storage, server.pid)]
                yield tuple(pid for node, pid in processes if not node.is_remote)

    def _options(self) -> str:
        """Return the options of the mount, as `sshfs -o` takes them."""
        kept = ("dcache", "dcache_stat", "dcache_dir", "dcache_link", "entry", "attr")
        options = [
            "ro",
            # Links are followed where the files are: the compute node must not resolve them on its own disk.
            "follow_symlinks",
            f"fsname=joulefeed-{self._storage.run_id}",
            *(f"{name}_timeout={LONG_S}" for name in kept),
            # More entries than a large dataset has files; sshfs' default of 10000 would forget ImageNet.
            "dcache_max_size=4000000",
        ]
        return ",".join(options)

    def describe(self) -> dict[str, object]:
        """Describe the mount."""
        return {
            "kind": self.kind,
            "options": self._options(),
            "cipher": CIPHER,
            "versions": [_version(["sshfs", "-V"]), _version(["ssh", "-V"])],
        }

    @contextmanager
    def _server(self, port: int) -> Iterator[Child]:
        """Run an SSH server on the storage node that serves files, read-only, to the run's own key alone."""
        config = self._there / f"sshd_config-{port}"
        _write(self._storage, config, self._server_config(port))
        # sshd's children lead sessions of their own; in a process namespace they die with it all the same.
        contain = ["unshare", "--pid", "--fork", "--kill-child"]
        if self._nested:
            # A root who is alone in a user namespace cannot become the unprivileged user that sshd needs.
            uid, gid = outer_identity()
            contain += ["--user", f"--map-user={uid}", f"--map-group={gid}"]
        argv = [*contain, "--", self._sshd, "-D", "-e", "-f", str(config)]
        server = self._storage.start(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        try:
            what = f"the SSH server of the mount on {self._storage.address}"
            wait_for_line(server, b"Server listening on", SERVER_START_S, what)
            yield server
        finally:
            # At SIGTERM the listener ends first and takes the process namespace, sessions included, with it.
            server.signal(signal.SIGTERM)
            # Each of its processes has the other end of the pipe: it ends with the last of them.
            server.finish(GRACE_S)
            server.stop()

    def _server_config(self, port: int) -> str:
        folder = self._there
        return f"""\
ListenAddress {self._storage.address}:{port}
HostKey "{folder / "host_key"}"
AuthorizedKeysFile "{folder / "user_key.pub"}"
AuthenticationMethods publickey
AllowUsers {self._user}
PermitRootLogin prohibit-password
StrictModes no
UsePAM {"yes" if self._is_locked else "no"}
UseDNS no
PidFile none
PrintMotd no
PermitTTY no
DisableForwarding yes
Subsystem sftp internal-sftp
ForceCommand internal-sftp -R
Ciphers {CIPHER}
IPQoS none
"""

    def _client_config(self, port: int) -> Path:
        folder = self._own
        known = folder / f"known_hosts-{port}"
        _write(self._compute, known, f"[{self._storage.address}]:{port} {self._host_key}")
        config = folder / f"ssh_config-{port}"
        text = f"""\
Host storage
HostName {self._storage.address}
Port {port}
User {self._user}
IdentityFile "{folder / "user_key"}"
IdentitiesOnly yes
IdentityAgent none
UserKnownHostsFile "{known}"
GlobalKnownHostsFile none
StrictHostKeyChecking yes
BatchMode yes
ControlMaster no
Compression no
Ciphers {CIPHER}
IPQoS none
ServerAliveInterval 15
ServerAliveCountMax 3
"""
        _write(self._compute, config, text)
        return config


def own_folder(node: Node, folder: Path) -> Path:
    """Return a folder of this host, or the one by its name on another host."""
    return node.folder / folder.name if node.is_remote else folder


def _write(node: Node, path: Path, text: str) -> None:
    node.run(["sh", "-c", 'umask 077 && printf %s "$1" >"$0"', str(path), text])


def _version(argv: list[str]) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    return (done.stdout + done.stderr).strip().partition("\n")[0]
