"""Hosts made of namespaces, for tests of the ssh testbed.

Each host has its own network, mount, PID and UTS namespaces, its own copy of every file (an overlay over the machine's
root), its own sshd and users: `tester` may use sudo without a password, `plain` may not. Storage hosts are on one site,
all others on another, and a delay line joins the sites.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from harness.config.regime import Regime
from harness.errors import TestbedError
from harness.system.process import run_environment
from harness.testbed.lifetime import Lifetime
from harness.testbed.link.socket_link import ask
from joulefeed.child import Child, ChildError
from tests.hosts import snapshot, vm
from tests.hosts.init import ADMIN
from tests.hosts.rack import Machine, Plan

REPO = Path(__file__).parents[2]
UP_S = 120.0
VIRTUAL_UP_S = 900.0
"""The image may have to be made first."""
DOWN_S = 30.0


@dataclass(frozen=True)
class Hosts:
    """Hosts that run, and what their owner does to them."""

    run_id: str
    folder: Path
    """Keys, sockets and logs, private to root; it goes with the hosts."""
    machines: tuple[Machine, ...]
    roles: dict[str, list[str]]
    """Names of hosts by role."""
    network: int
    rack_pid: int
    delays: bool
    """Whether a delay line joins the sites."""

    @property
    def inventory(self) -> Path:
        """The inventory in Ansible's format."""
        return self.folder / "hosts.yml"

    @property
    def known_hosts(self) -> Path:
        return self.folder / "known_hosts"

    @property
    def key(self) -> Path:
        """The controller's private key."""
        return self.folder / "client_key"

    @property
    def link_socket(self) -> Path | None:
        """The link's control socket, here and on all hosts; None where no delay line joins the sites."""
        return self.folder / "link" / "control" if self.delays else None

    def address(self, host: str) -> str:
        return self._machine(host).address(self.network)

    def data_address(self, host: str) -> str:
        return self._machine(host).data_address

    def ssh_options(self) -> list[str]:
        """Return options of ssh that check host keys against this run's."""
        options = {
            "UserKnownHostsFile": self.known_hosts,
            "GlobalKnownHostsFile": "none",
            "StrictHostKeyChecking": "yes",
            "IdentitiesOnly": "yes",
        }
        return [part for key, value in options.items() for part in ("-o", f"{key}={value}")]

    def ssh(self, host: str, *command: str, user: str = ADMIN, timeout_s: float = 60) -> subprocess.CompletedProcess:
        """Run a command on a host as the controller does; the status is not checked."""
        return subprocess.run(
            [*self._ssh(host, user), *command],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            stdin=subprocess.DEVNULL,
        )

    def _ssh(self, host: str, user: str) -> list[str]:
        argv = ["ssh", "-F", "none", "-i", str(self.key), *self.ssh_options(), "-oBatchMode=yes", "-oConnectTimeout=10"]
        return [*argv, f"{user}@{self.address(host)}"]

    def enter(self, host: str) -> list[str]:
        """Return the command that runs what follows it as root in a host, without SSH."""
        pid = self.pid(host)
        spaces = ["--mount", "--uts", "--net", f"--pid=/proc/{pid}/ns/pid_for_children"]
        return ["nsenter", f"--target={pid}", *spaces, "--"]

    def pid(self, host: str) -> int:
        """Return a process that is in a host's network namespace."""
        pid = self._ask(host, "pid")
        assert pid is not None, f"{host} is off"
        return int(pid)

    def run(self, host: str, *command: str, timeout_s: float = 60) -> str:
        """Run a command as root in a host, without SSH where it is of namespaces, and return its output."""
        if self._machine(host).is_virtual:
            done = self.ssh(host, "sudo", "-n", shlex.join(command), timeout_s=timeout_s)
        else:
            argv = [*self.enter(host), *command]
            done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout_s, check=False)
        assert not done.returncode, f"{command} on {host}: {done.stderr or done.stdout}"
        return done.stdout

    def stop(self, host: str) -> None:
        """Power a host off at once; its peers are told nothing."""
        self._ask(host, "stop")

    def start(self, host: str) -> None:
        """Power a host on, and wait until its sshd listens."""
        self._ask(host, "start")

    def cable(self, host: str, network: str, *, plugged: bool) -> None:
        """Plug a host's cable of the network `mgmt` or `data` in, or pull it."""
        self._ask(host, "cable", network=network, plugged=plugged)

    def set_regime(self, regime: Regime) -> None:
        """Set the delay line between the sites."""
        assert self.link_socket is not None
        ask(self.link_socket, "set", regime=regime.model_dump())

    def snapshot(self, host: str) -> snapshot.Snapshot:
        """Describe what a host has: files that differ from a new host's machine, processes, mounts, networks, users."""
        code = Path(snapshot.__file__).read_text()
        if self._machine(host).is_virtual:
            return self._snapshot_virtual(host, code)
        files = subprocess.run(
            [
                *("nsenter", f"--target={self.rack_pid}", "--mount", "--"),
                *(sys.executable, "-I", snapshot.__file__, "--overlay", str(self.folder / "disks" / host)),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        assert not files.returncode, files.stderr
        state = subprocess.run(
            [*self.enter(host), "/usr/bin/python3", "-I", "-"], input=code, capture_output=True, text=True, check=False
        )
        assert not state.returncode, state.stderr
        return {**json.loads(files.stdout), **json.loads(state.stdout)}

    def _snapshot_virtual(self, host: str, code: str) -> snapshot.Snapshot:
        command = f"sudo -n /usr/bin/python3 -I - --folders {' '.join(snapshot.FOLDERS)}"
        state = subprocess.run(
            [*self._ssh(host, ADMIN), command], input=code, capture_output=True, text=True, timeout=300, check=False
        )
        assert not state.returncode, state.stderr
        taken: snapshot.Snapshot = json.loads(state.stdout)
        return taken

    def save(self) -> None:
        """Record the hosts in their folder, for other processes."""
        (self.folder / "hosts.json").write_text(json.dumps(asdict(self), default=str))

    @classmethod
    def of(cls, inventory: Path) -> Hosts:
        """Return the hosts that an inventory describes, which another process owns."""
        folder = Path(yaml.safe_load(inventory.read_text())["all"]["vars"]["namespace_hosts"])
        fields = json.loads((folder / "hosts.json").read_text())
        machines = tuple(Machine(**each) for each in fields["machines"])
        return cls(**{**fields, "folder": folder, "machines": machines})

    def describe(self) -> dict[str, Any]:
        """Return the inventory, as Ansible reads it."""
        variables: dict[str, Any] = {
            "ansible_user": ADMIN,
            "ansible_ssh_private_key_file": str(self.key),
            "ansible_ssh_common_args": " ".join(self.ssh_options()),
            "ansible_python_interpreter": "/usr/bin/python3",
            "joulefeed_python": sys.executable,
            "namespace_hosts": str(self.folder),
        }
        if self.link_socket is not None:
            variables["joulefeed_link_socket"] = str(self.link_socket)
        hosts = {
            each.name: {
                "ansible_host": self.address(each.name),
                "joulefeed_data_interface": "data0",
                "joulefeed_data_address": each.data_address,
            }
            for each in self.machines
        }
        groups = {role: {"hosts": dict.fromkeys(names, None)} for role, names in self.roles.items()}
        return {"all": {"vars": variables, "hosts": hosts, "children": groups}}

    def _machine(self, host: str) -> Machine:
        return next(each for each in self.machines if each.name == host)

    def _ask(self, host: str, do: str, **arguments: Any) -> Any:
        return ask(self.folder / "rack.sock", do, UP_S, host=host, **arguments)


def harness_testbed(hosts: Hosts, command: str, *options: str) -> str:
    """Run `python -m harness.testbed` on the hosts and return its last line."""
    argv = [sys.executable, "-m", "harness.testbed", command, "--inventory", str(hosts.inventory), *options]
    done = subprocess.run(argv, cwd=REPO, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip().splitlines()[-1]


def ansible_obstacles() -> list[str]:
    """Return the same for hosts that playbooks set up."""
    found = obstacles()
    if not (REPO / ".venv-ansible/bin/ansible-playbook").exists() and shutil.which("ansible-playbook") is None:
        found.append("Ansible is not installed: make ansible")
    return found


def obstacles() -> list[str]:
    """Return what this machine lacks for namespace hosts, each with its remedy; empty when nothing is missing."""
    if os.geteuid() != 0:
        return ["namespace hosts need root"]
    packages = {"sudo": "sudo", "sshd": "openssh-server", "ssh": "openssh-client", "ip": "iproute2"}
    packages |= {"nsenter": "util-linux", "setpriv": "util-linux", "pivot_root": "util-linux", "useradd": "passwd"}
    # What playbooks install on a host that lacks them; these hosts reach no package registry.
    packages |= {"modprobe": "kmod", "sysctl": "procps"}
    found = [
        f"{tool} is not installed: apt-get install {package}"
        for tool, package in packages.items()
        if not any((Path(folder) / tool).exists() for folder in ("/usr/bin", "/usr/sbin", "/bin", "/sbin"))
    ]
    if "overlay" not in Path("/proc/filesystems").read_text():
        found.append("the kernel has no overlayfs: modprobe overlay")
    if not Path("/dev/net/tun").exists():
        found.append("there is no /dev/net/tun: modprobe tun")
    return found


@contextmanager
def namespace_hosts(
    storage: int = 1,
    compute: int = 1,
    *,
    virtual: bool = False,
    delays: bool = True,
    apart: bool = False,
    disk_mb: int = 2048,
) -> Iterator[Hosts]:
    """Make hosts, and remove them whole at the end, however this process ends.

    Args:
        storage: number of hosts storage1, storage2, …
        compute: number of hosts compute1, compute2, …
        virtual: whether they are virtual machines; false by default.
        delays: whether a delay line joins the sites; else they are joined at once, and hosts may use netem.
        apart: whether every second compute host is on the site of the storage hosts; false by default.
        disk_mb: space for the files of each host, in memory, MiB.

    Raises:
        TestbedError: something is missing or does not start; nothing is left behind.
    """
    if missing := [*obstacles(), *(vm.obstacles() if virtual else [])]:
        raise TestbedError("; ".join(missing))
    roles = {"storage": [f"storage{i + 1}" for i in range(storage)]}
    roles["compute"] = [f"compute{i + 1}" for i in range(compute)]
    names = [*roles["storage"], *roles["compute"]]
    there = {*roles["storage"], *(roles["compute"][1::2] if apart else [])}
    machines = [
        Machine(name, number, "storage" if name in there else "compute", virtual)
        for number, name in enumerate(names, 1)
    ]
    roles |= {"control": roles["compute"][:1], "tsdb": []}
    run_id = f"hosts{uuid.uuid4().hex[:8]}"
    with ExitStack() as stack:
        lifetime = Lifetime(run_id)
        stack.callback(lifetime.close)
        folder = lifetime.names.folder
        (folder / "link").mkdir()
        key = folder / "client_key"
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "controller", "-f", str(key)],
            check=True,
            capture_output=True,
        )
        plan = Plan(
            folder=str(folder),
            machines=machines,
            shared=_shared(everything=virtual),
            authorized_key=key.with_suffix(".pub").read_text().strip(),
            delays=delays,
            disk_mb=disk_mb,
        )
        rack = stack.enter_context(
            Child(
                [sys.executable, "-m", "tests.hosts.rack"],
                prefix=["unshare", "--mount", "--propagation", "slave", "--"],
                env=run_environment(run_id),
                cwd=REPO,
                stderr=folder / "rack.log",
            )
        )
        stack.callback(rack.stop, eof_s=DOWN_S)
        rack.send(json.dumps(asdict(plan)).encode() + b"\n")
        try:
            ready: dict[str, Any] = rack.ready(VIRTUAL_UP_S if virtual else UP_S)
        except ChildError as error:
            raise TestbedError(f"the hosts' rack {error}") from error
        if "error" in ready:
            raise TestbedError(ready["error"])
        lifetime.wait_guarded()
        stack.callback(_wait_gone, ready["network"])
        stack.callback(rack.stop, eof_s=DOWN_S)
        hosts = Hosts(run_id, folder, tuple(machines), roles, ready["network"], rack.pid, delays)
        hosts.known_hosts.write_text(
            "".join(f"{hosts.address(name)} {line}\n" for name, line in ready["host_keys"].items())
        )
        hosts.inventory.write_text(yaml.safe_dump(hosts.describe(), sort_keys=False))
        hosts.save()
        yield hosts


def _shared(*, everything: bool) -> list[str]:
    """Return the folders of checkout and interpreter: all, or those that an overlay of the root does not have."""
    found = [REPO.resolve()]
    for each in map(Path, (sys.prefix, sys.base_prefix)):
        folder = each.resolve()
        is_elsewhere = folder.stat().st_dev != Path("/").stat().st_dev or folder.parts[1] in {"run", "tmp"}
        if (everything or is_elsewhere) and not any(folder.is_relative_to(other) for other in found):
            found.append(folder)
    return [str(each) for each in found]


def _wait_gone(network: int) -> None:
    deadline = time.monotonic() + DOWN_S
    while Path(f"/sys/class/net/jfm{network}").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
