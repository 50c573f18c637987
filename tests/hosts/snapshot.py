"""What a host has, for comparisons before and after: a script that needs Python's standard library alone.

`python3 - < snapshot.py` on the host prints processes, mounts, networks, sysctls, users, firewall and units, and with
`--folders` the files of some folders. `--overlay DISK` prints the files of a namespace host's disk that differ from the
machine's below.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Snapshot = dict[str, Any]

# What changes by itself: logs and records of logins, times of sudo, locks of account tools, and what a boot writes.
# Compiled Python and Ansible's folder in its user's home, in which a killed task leaves files, are left out as well.
CHANGING = (
    "/var/log/",
    "/run/utmp",
    "/run/sudo",
    "/run/boot_id",
    "/run/sshd.pid",
    "/var/lib/sudo/",
    "/var/lib/systemd/random-seed",
    "/var/lib/nfs/nfsdcld/",
    # What the host's own chronyd writes whenever it ends.
    "/var/lib/chrony/chrony.drift",
    # Folders of services that systemd has started, by a random name.
    "/tmp/systemd-private-",
    "/var/tmp/systemd-private-",
    "/etc/.pwd.lock",
    "/etc/passwd-",
    "/etc/shadow-",
    "/etc/group-",
    "/etc/gshadow-",
    "/etc/subuid-",
    "/etc/subgid-",
)
# Where a machine that is no overlay is compared.
FOLDERS = ("/etc", "/home", "/root", "/opt", "/srv", "/tmp", "/usr/local", "/var")
CHANGING_PROCESSES = ("sshd: ", "(sd-pam)", "/usr/bin/python3 -I -", "sudo ")
# Counters and clocks that the kernel changes, and what it derives from free memory at each boot.
CHANGING_SYSCTLS = (
    *("kernel.random.", "fs.", "kernel.pty.nr", "kernel.ns_last_pid", "kernel.sched_domain", "dev."),
    *("kernel.threads-max", "net.ipv4.inet_peer_threshold", "net.ipv4.tcp_mem", "net.ipv4.udp_mem"),
    *("vm.min_free_kbytes", "vm.user_reserve_kbytes"),
    # The machine has this one for all its namespaces, and other tests widen it for a moment.
    "net.ipv4.tcp_allowed_congestion_control",
)


def files(pairs: Iterator[tuple[Path, str]]) -> dict[str, str]:
    """Describe each (file, name on the host) whose name does not change by itself."""
    found = {}
    for path, name in pairs:
        if not name.startswith(CHANGING) and "__pycache__" not in name and "/.ansible" not in name:
            try:
                found[name] = describe(path)
            except FileNotFoundError:
                continue
    return dict(sorted(found.items()))


def describe(path: Path) -> str:
    status = path.lstat()
    if stat.S_ISCHR(status.st_mode) and status.st_rdev == 0:
        return "removed"
    words = [stat.filemode(status.st_mode), str(status.st_uid), str(status.st_gid)]
    if stat.S_ISLNK(status.st_mode):
        words.append(str(path.readlink()))
    elif stat.S_ISREG(status.st_mode):
        words.append(hashlib.blake2b(path.read_bytes(), digest_size=12).hexdigest())
    return " ".join(words)


def walk(folder: Path, name: str) -> Iterator[tuple[Path, str]]:
    """Yield everything below a folder, one file system alone, with its name on the host."""
    device = folder.lstat().st_dev
    for top, folders, names in os.walk(folder):
        here = Path(top)
        folders[:] = [each for each in folders if not (here / each).is_mount() or (here / each).is_symlink()]
        for each in (*folders, *names):
            path = here / each
            if path.lstat().st_dev == device:
                yield path, f"{name}/{path.relative_to(folder)}"


def overlay_files(disk: Path) -> dict[str, str]:
    """Return the files of a namespace host that differ from the machine's."""
    changed = files(walk(disk / "upper", ""))
    kept = {name: told for name, told in changed.items() if not _is_below(name, told)}
    for name in ("run", "tmp"):
        kept |= files(walk(disk / name, f"/{name}"))
    return kept


def _is_below(name: str, told: str) -> bool:
    try:
        return describe(Path(name)) == told
    except OSError:
        return False


def processes() -> list[str]:
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal() or int(folder.name) == os.getpid():
            continue
        try:
            words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:
            continue
        if words and not words.startswith(CHANGING_PROCESSES):
            found.append(words)
    return sorted(found)


def sysctls() -> dict[str, str]:
    found = {}
    for folder in ("net", "vm", "kernel"):
        for path in Path("/proc/sys", folder).rglob("*"):
            key = ".".join(path.relative_to("/proc/sys").parts)
            if path.is_file() and not key.startswith(CHANGING_SYSCTLS):
                try:
                    found[key] = " ".join(path.read_text().split())
                except (OSError, UnicodeDecodeError):
                    continue
    return found


def _mount(line: str) -> str:
    # An overlay that is mounted a second time tells more of its options.
    # The size of a tmpfs is a share of the memory, of which a boot finds more or less.
    return re.sub(r",size=\d+k", "", " ".join(line.split()[:4])).removesuffix(",uuid=on")


def output(*argv: str) -> list[str]:
    """Return the lines that a tool prints; none where it is not installed."""
    if shutil.which(argv[0], path="/usr/sbin:/usr/bin:/sbin:/bin") is None:
        return []
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
    return subprocess.run(argv, capture_output=True, text=True, check=False, env=environment).stdout.splitlines()


def take(folders: list[str]) -> Snapshot:
    """Describe this host."""
    found: Snapshot = {
        "processes": processes(),
        "mounts": sorted(_mount(line) for line in Path("/proc/mounts").read_text().splitlines()),
        # The number of a cable's other end is another one after a reboot.
        "addresses": [re.sub(r"@if\d+ ", " ", line) for line in output("ip", "-brief", "address")],
        "routes": output("ip", "route"),
        "qdiscs": output("tc", "qdisc", "show"),
        "nftables": output("nft", "list", "ruleset"),
        "sysctls": sysctls(),
        "users": sorted(Path("/etc/passwd").read_text().splitlines() + Path("/etc/group").read_text().splitlines()),
        "crontabs": output("crontab", "-l"),
    }
    if Path("/run/systemd/system").is_dir():
        found["unit_files"] = output("systemctl", "list-unit-files", "--no-legend", "--no-pager", "--plain")
        running = output("systemctl", "list-units", "--state=active", "--no-legend", "--no-pager", "--plain")
        found["units"] = sorted(line.split()[0] for line in running if not line.startswith(("session-", "user")))
    if folders:
        found["files"] = files(pair for folder in folders for pair in walk(Path(folder), folder))
    return found


def differences(before: Snapshot, after: Snapshot) -> Snapshot:
    """Return what two snapshots of a host differ in: (before, after) of each entry, None for one that is not there."""
    found: Snapshot = {}
    for section in before.keys() | after.keys():
        first, second = (
            each if isinstance(each, dict) else {line: "there" for line in each}
            for each in (before.get(section, {}), after.get(section, {}))
        )
        changed = {
            key: (first.get(key), second.get(key))
            for key in sorted(first.keys() | second.keys())
            if first.get(key) != second.get(key)
        }
        if changed:
            found[section] = changed
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--overlay", type=Path)
    parser.add_argument("--folders", nargs="*", default=[])
    options = parser.parse_args()
    print(json.dumps({"files": overlay_files(options.overlay)} if options.overlay else take(options.folders)))


if __name__ == "__main__":
    main()
