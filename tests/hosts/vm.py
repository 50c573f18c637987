"""Virtual machines as hosts: a Debian image made once by debootstrap, and what starts a machine from it.

The image has systemd, kernel modules for netem and NFS, chrony and the users of namespace hosts. User-mode Linux runs
it: programs run at this machine's speed in it, and it needs no KVM. The checkout and its interpreter are shared
read-only.
"""

from __future__ import annotations

import fcntl
import inspect
import os
import select
import shlex
import shutil
import socket
import struct
import subprocess
import tempfile
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from harness.errors import TestbedError
from joulefeed.child import Child
from tests.hosts.init import ADMIN, PLAIN

RELEASE = "bookworm"
PACKAGES = (
    *("systemd-sysv", "udev", "dbus", "kmod"),
    *("openssh-server", "openssh-client", "sudo", "iproute2", "procps", "nftables", "chrony"),
    *("nfs-kernel-server", "nfs-common", "python3", "python3-apt", "gcc", "libc6-dev"),
)
TOOLS = {"debootstrap": "debootstrap", "mke2fs": "e2fsprogs", "linux.uml": "user-mode-linux"}
UML_MODULES = Path("/usr/lib/uml/modules")
DISK = "6G"
MOUNTS = ("unshare", "--mount", "--")
"""What debootstrap and package scripts mount goes with them."""
BOOT_S = 300.0
STOP_S = 20.0
TUNSETIFF = 0x400454CA  # linux/if_tun.h
IFF_TAP, IFF_NO_PI = 0x0002, 0x1000
# Each takes a second or more, and no test needs it.
MASKED = (
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "e2scrub_reap.service",
    "e2scrub_all.timer",
    "getty@tty1.service",
)

# Before sshd: who this machine is, from its second disk, and the shared folders.
IDENTITY = """\
#!/bin/sh
set -eu
mkdir -p /run/identity
mount -o ro /dev/ubdb /run/identity
. /run/identity/settings
echo "$NAME" > /etc/hostname
hostname "$NAME"
cp /run/identity/hosts /etc/hosts
install -m 600 /run/identity/ssh_host_ed25519_key /run/identity/ssh_host_ed25519_key.pub /etc/ssh/
echo "ListenAddress $ADDRESS" > /etc/ssh/sshd_config.d/identity.conf
for user in USERS; do
  install -d -m 700 -o "$user" -g "$user" "/home/$user/.ssh"
  install -m 600 -o "$user" -g "$user" /run/identity/authorized_key "/home/$user/.ssh/authorized_keys"
done
for card in /sys/class/net/*; do
  case "$(cat "$card/address")" in
    "$MGMT_CARD") ip link set "${card##*/}" name mgmt0 ;;
    "$DATA_CARD") ip link set "${card##*/}" name data0 ;;
  esac
done
ip address add "$ADDRESS/24" dev mgmt0
ip link set mgmt0 up
ip address add "$DATA_ADDRESS/24" dev data0
ip link set data0 up
ip route add 10.77.0.0/16 via "$GATEWAY"
mkdir -p /run/shared
mount -t hostfs -o ro none /run/shared
while read -r folder; do
  mkdir -p "$folder"
  mount --bind "/run/shared$folder" "$folder"
  mount -o remount,bind,ro "$folder"
done < /run/identity/shared
umount /run/identity
""".replace("USERS", f"{ADMIN} {PLAIN}")

UNIT = """\
[Unit]
Description=Identity of this test host
After=local-fs.target systemd-udev-settle.service systemd-modules-load.service
Wants=systemd-udev-settle.service
Before=ssh.service network.target
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/local/sbin/identity
[Install]
WantedBy=multi-user.target
RequiredBy=ssh.service
"""


def obstacles() -> list[str]:
    """Return what this machine lacks for virtual machines; empty when nothing is missing."""
    return [f"{tool}: apt-get install {package}" for tool, package in TOOLS.items() if shutil.which(tool) is None]


def image() -> Path:
    """Return the folder of the image, disk.img, made first if the cache does not have it: a minute or two, and 3 GB.

    Raises:
        TestbedError: a tool is missing, or a step failed.
    """
    if missing := obstacles():
        raise TestbedError("; ".join(missing))
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "joulefeed" / "vm"
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        modules = sorted(each.name for each in UML_MODULES.iterdir())
        makes = map(inspect.getsource, (_make, _configure))
        recipe = "\n".join([RELEASE, *PACKAGES, *modules, IDENTITY, UNIT, *MASKED, DISK, *makes])
        marker = cache / "recipe"
        if not marker.exists() or marker.read_text() != recipe:
            marker.unlink(missing_ok=True)
            _make(cache)
            marker.write_text(recipe)
        return cache


def _make(cache: Path) -> None:
    base = cache / "base.tar"
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        root = Path(folder) / "root"
        root.mkdir()
        wanted = "\n".join([RELEASE, *PACKAGES])
        marker = cache / "base"
        if not base.exists() or not marker.exists() or marker.read_text() != wanted:
            _run(*MOUNTS, "debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", RELEASE, str(root))
            _run("find", str(root / "var/cache/apt"), str(root / "var/lib/apt/lists"), "-type", "f", "-delete")
            _run("tar", "-C", str(root), "-cf", str(base), ".")
            marker.write_text(wanted)
        else:
            _run("tar", "-C", str(root), "-xf", str(base))
        _configure(root)
        _run("mke2fs", "-q", "-t", "ext4", "-F", "-d", str(root), str(cache / "disk.img"), DISK)


def _configure(root: Path) -> None:
    shutil.copytree(UML_MODULES, root / "lib/modules", dirs_exist_ok=True)
    # The kernel mounts the root; its name is another one on each kind of machine.
    (root / "etc/fstab").write_text("")
    script = root / "usr/local/sbin/identity"
    script.write_text(IDENTITY)
    script.chmod(0o755)
    (root / "etc/systemd/system/identity.service").write_text(UNIT)
    for user in (ADMIN, PLAIN):
        _run(*MOUNTS, "chroot", str(root), "useradd", "--create-home", "--shell", "/bin/bash", "--password", "*", user)
    sudoers = root / f"etc/sudoers.d/{ADMIN}"
    sudoers.write_text(f"{ADMIN} ALL=(ALL) NOPASSWD: ALL\n")
    sudoers.chmod(0o440)
    for key in (root / "etc/ssh").glob("ssh_host_*"):
        key.unlink()
    (root / "etc/ssh/sshd_config.d/test.conf").write_text("PasswordAuthentication no\nUseDNS no\n")
    (root / "etc/machine-id").write_text("")
    _run(*MOUNTS, "chroot", str(root), "systemctl", "enable", "identity.service")
    _run(*MOUNTS, "chroot", str(root), "systemctl", "mask", *MASKED)


@dataclass(frozen=True)
class Identity:
    """What makes a machine of the image one of the hosts."""

    name: str
    address: str
    data_address: str
    gateway: str
    mgmt_card: str
    data_card: str
    authorized_key: str
    shared: list[str]
    known: dict[str, str]


class VirtualMachine:
    """Its disks, its processes; stopping it leaves its disks.

    Args:
        folder: folder of its disks and sockets, private to root.
        memory_mb: its memory.
    """

    def __init__(self, image: Path, folder: Path, memory_mb: int) -> None:
        self._image, self._folder, self._memory_mb = image, folder, memory_mb
        self._stack = ExitStack()

    def prepare(self, identity: Identity) -> str:
        """Make its disks, if they are not there, and the tree of shared folders; returns its public host key."""
        folder = self._folder
        key = folder / "identity/ssh_host_ed25519_key"
        if not key.exists():
            key.parent.mkdir(parents=True)
            _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", identity.name, "-f", str(key))
            settings = {
                "NAME": identity.name,
                "ADDRESS": identity.address,
                "DATA_ADDRESS": identity.data_address,
                "GATEWAY": identity.gateway,
                "MGMT_CARD": identity.mgmt_card,
                "DATA_CARD": identity.data_card,
            }
            files = {
                "settings": "".join(f"{name}={shlex.quote(value)}\n" for name, value in settings.items()),
                "authorized_key": f"{identity.authorized_key}\n",
                "shared": "".join(f"{each}\n" for each in identity.shared),
                "hosts": "127.0.0.1 localhost\n"
                + "".join(f"{address} {name}\n" for name, address in identity.known.items()),
            }
            for name, text in files.items():
                (key.parent / name).write_text(text)
            _run("mke2fs", "-q", "-t", "ext2", "-d", str(key.parent), str(folder / "identity.img"), "1M")
            for each in identity.shared:
                below = folder / "shared" / each.lstrip("/")
                below.mkdir(parents=True)
                # In the rack's own mount namespace, with which it goes.
                _run("mount", "--bind", each, str(below))
                _run("mount", "-o", "remount,bind,ro", str(below))
        return key.with_suffix(".pub").read_text().strip()

    def start(self, mgmt_tap: int, data_tap: int, identity: Identity) -> Child:
        """Power it on, and return its process.

        Args:
            mgmt_tap: descriptor of the TAP device of its network card mgmt0.
            data_tap: of data0.
            identity: as `prepare` got it.
        """
        folder = self._folder
        # All of its processes hold the other end open.
        ended, alive = os.pipe()
        self._stack.callback(_await_end, ended)
        console = os.open(folder / "console.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            return self._stack.enter_context(
                Child(
                    self._uml(mgmt_tap, data_tap, identity),
                    stdin=subprocess.DEVNULL,
                    stdout=console,
                    stderr=folder / "machine.log",
                    pass_fds=(mgmt_tap, data_tap, alive),
                    killed_with_parent=True,
                )
            )
        finally:
            os.close(alive)
            os.close(console)

    def _uml(self, mgmt_tap: int, data_tap: int, identity: Identity) -> list[str]:
        folder = self._folder
        cards = ((mgmt_tap, identity.mgmt_card), (data_tap, identity.data_card))
        return [
            # Its processes are this machine's, and end with their namespace. It does not start as the first of them.
            *("unshare", "--pid", "--fork", "--kill-child", "--", "setsid", "--fork", "--wait"),
            *("linux.uml", f"mem={self._memory_mb}M", "root=/dev/ubda", "rw", f"hostfs={folder / 'shared'}"),
            *(f"ubd0={folder / 'disk.cow'},{self._image / 'disk.img'}", f"ubd1r={folder / 'identity.img'}"),
            *(f"uml_dir={folder / 'uml'}", "umid=machine", "con=null", "con0=null,fd:1", "ssl=null"),
            *(f"vec{n}:transport=fd,fd={tap},vec=0,mac={card}" for n, (tap, card) in enumerate(cards)),
        ]

    def stop(self) -> None:
        """Power it off at once."""
        self._stack.close()

    def wait_ssh(self, address: str) -> None:
        """Wait until its SSH server answers.

        Raises:
            TestbedError: it does not in time.
        """
        deadline = time.monotonic() + BOOT_S
        while time.monotonic() < deadline:
            with suppress(OSError), socket.create_connection((address, 22), timeout=2) as connection:
                if connection.recv(4) == b"SSH-":
                    return
            time.sleep(0.2)
        log = self._folder / "console.log"
        told = log.read_bytes()[-500:].decode(errors="replace") if log.exists() else "nothing"
        raise TestbedError(f"virtual machine at {address} does not answer in {BOOT_S:g} s; its console says {told!r}")


def open_tap(name: str) -> int:
    """Make a TAP device in the calling thread's network namespace; it lives as long as the descriptor."""
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
    fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
    return descriptor


def _await_end(ended: int) -> None:
    """Wait until nobody holds the other end of a pipe open."""
    select.select((ended,), (), (), STOP_S)
    os.close(ended)


def _run(*argv: str) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
    done = subprocess.run(argv, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, env=environment)
    if done.returncode:
        raise TestbedError(f"{' '.join(argv)}: {(done.stderr or done.stdout).strip()[-500:]}")
