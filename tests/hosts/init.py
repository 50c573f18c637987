"""The first process of a namespace host: makes the host's own root, users and sshd, and ends with its stdin.

It starts in the host's mount, PID, UTS and network namespaces. Its first line of stdin is a JSON object with the fields
of `Boot`; it answers with one line, {"host_key": "ssh-ed25519 ..."}. The host's root is an overlay over the machine's,
so the host has its own copy of every folder; /run, /tmp and /dev/shm are empty at each boot.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ADMIN, PLAIN = "tester", "plain"
"""The login user with passwordless sudo, and the one without."""

# What the machine's root has here belongs to the machine.
FRESH = {"run": 0o755, "tmp": 0o1777}
SSHD = "/usr/sbin/sshd"
SSHD_CONFIG = """\
ListenAddress {address}:22
HostKey /etc/ssh/ssh_host_ed25519_key
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin no
UsePAM no
UseDNS no
PrintMotd no
MaxStartups 100
Subsystem sftp internal-sftp
"""


@dataclass(frozen=True)
class Boot:
    """What a host needs to start."""

    name: str
    address: str
    """Its address on the management network; sshd listens nowhere else."""
    disk: str
    """Folder of the host's files, which outlive a reboot."""
    shared: list[str]
    """Folders of the machine that the host sees read-only: the checkout and its interpreter."""
    link_folder: str | None
    """Folder of the link's control socket, which the host sees as it is."""
    authorized_key: str
    """The controller's public key."""
    known: dict[str, str]
    """Addresses of all hosts by name, for /etc/hosts."""


def main() -> int:
    boot = Boot(**json.loads(sys.stdin.readline()))
    make_root(boot)
    configure(boot)
    signal.signal(signal.SIGCHLD, lambda *_: reap())
    with Path("/var/log/sshd.log").open("ab") as log:
        subprocess.Popen([SSHD, "-D", "-e"], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={"PATH": PATH})
    wait_listening(boot.address)
    print(json.dumps({"host_key": Path("/etc/ssh/ssh_host_ed25519_key.pub").read_text().strip()}), flush=True)
    while os.read(0, 4096):
        pass
    return 0


PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def tool(*argv: str, stdin: str | None = None) -> None:
    done = subprocess.run(argv, input=stdin, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(argv)}: {(done.stderr or done.stdout).strip()}")


def make_root(boot: Boot) -> None:
    disk = Path(boot.disk)
    root = disk / "root"
    for name in ("upper", "work", "root", *FRESH):
        (disk / name).mkdir(exist_ok=True)
    options = f"lowerdir=/,upperdir={disk}/upper,workdir={disk}/work"
    tool("mount", "-t", "overlay", "overlay", "-o", options, str(root))
    for name, mode in FRESH.items():
        (disk / name).chmod(mode)
        tool("mount", "--bind", str(disk / name), str(root / name))
    tool("mount", "-t", "proc", "proc", str(root / "proc"))
    # The kernel's own is the same for all hosts, and after a reboot.
    boot_id = disk / "run/boot_id"
    boot_id.write_text(f"{uuid.uuid4()}\n")
    tool("mount", "--bind", str(boot_id), str(root / "proc/sys/kernel/random/boot_id"))
    tool("mount", "-t", "sysfs", "sysfs", str(root / "sys"))
    if Path("/sys/fs/cgroup").is_mount():
        tool("mount", "--rbind", "/sys/fs/cgroup", str(root / "sys/fs/cgroup"))
    tool("mount", "--rbind", "/dev", str(root / "dev"))
    tool("mount", "-t", "devpts", "-o", "newinstance,ptmxmode=0666,mode=620,gid=5", "devpts", str(root / "dev/pts"))
    tool("mount", "-t", "tmpfs", "-o", "mode=1777", "shm", str(root / "dev/shm"))
    # Another file system, or one of the folders that are empty here: bound from the machine.
    for each in map(Path, boot.shared):
        below = root / each.relative_to("/")
        below.mkdir(parents=True, exist_ok=True)
        tool("mount", "--bind", str(each), str(below))
        tool("mount", "-o", "remount,bind,ro", str(below))
    if boot.link_folder is not None:
        below = root / Path(boot.link_folder).relative_to("/")
        below.mkdir(parents=True, exist_ok=True)
        tool("mount", "--bind", boot.link_folder, str(below))
    os.chdir(root)
    Path("run/old").mkdir(exist_ok=True)
    tool("pivot_root", ".", "run/old")
    os.chroot(".")
    os.chdir("/")
    tool("umount", "--lazy", "/run/old")
    Path("/run/old").rmdir()


def configure(boot: Boot) -> None:
    socket.sethostname(boot.name)
    Path("/etc/hostname").write_text(f"{boot.name}\n")
    Path("/etc/hosts").write_text(
        "127.0.0.1 localhost\n" + "".join(f"{address} {name}\n" for name, address in boot.known.items())
    )
    for folder in ("/run/sshd", "/run/lock"):
        Path(folder).mkdir(exist_ok=True)
    if Path("/etc/sudoers.d/tester").exists():
        return  # a reboot
    for user in (ADMIN, PLAIN):
        tool("useradd", "--create-home", "--shell", "/bin/bash", "--password", "*", user)
        keys = Path("/home") / user / ".ssh/authorized_keys"
        keys.parent.mkdir(mode=0o700)
        keys.write_text(f"{boot.authorized_key}\n")
        tool("chown", "-R", f"{user}:{user}", str(keys.parent))
    Path("/etc/machine-id").write_text(f"{uuid.uuid4().hex}\n")
    for key in Path("/etc/ssh").glob("ssh_host_*"):
        key.unlink()
    tool("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", boot.name, "-f", "/etc/ssh/ssh_host_ed25519_key")
    Path("/etc/ssh/sshd_config").write_text(SSHD_CONFIG.format(address=boot.address))
    sudoers = Path("/etc/sudoers.d/tester")
    sudoers.write_text(f"{ADMIN} ALL=(ALL) NOPASSWD: ALL\n")
    sudoers.chmod(0o440)


def wait_listening(address: str) -> None:
    for _ in range(200):
        with suppress(OSError), socket.create_connection((address, 22), timeout=5):
            return
        signal.sigtimedwait((), 0.05)
    raise SystemExit(f"sshd does not listen on {address}: {Path('/var/log/sshd.log').read_text()[-500:]}")


def reap() -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


if __name__ == "__main__":
    sys.exit(main())
