"""The process that owns the hosts' namespaces, networks and disks: `python -m tests.hosts.rack`.

Its first line of stdin is a JSON object with the fields of `Plan`; it ends with its stdin, and the kernel then removes
everything, because nothing has a name outside of the rack's own mount namespace:

    mgmt            bridge of the management network, 10.76.N.0/24; the machine has an interface in it, jfmN
    storage-site    bridge and router of the hosts near the storage, 10.77.1.0/24
    compute-site    bridge and router of the hosts near the compute nodes, 10.77.2.0/24

Each host has `mgmt0` and `data0`. A delay line joins the routers. The rate is capped between a site's bridge and its
router, because forwarding ends TCP's small queues, which keep the queue of the cap short.
"""

from __future__ import annotations

import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from harness.config.regime import Regime
from harness.errors import TestbedError
from harness.testbed.link.base import Link
from harness.testbed.link.namespace import COMPUTE_ADDRESS, STORAGE_ADDRESS, inside, run_in, write_sysctl
from harness.testbed.link.tcp import CONGESTION_CONTROL, choose_congestion
from harness.testbed.link.userspace.relay_link import RelayLink
from joulefeed.calls import Answers, SocketChannel
from joulefeed.child import Child, ChildError
from tests.hosts import vm
from tests.hosts.init import Boot

SITES = ("storage", "compute")
NETWORKS = ("mgmt", "data")
ALLOWED = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
NAMESPACES = Path("/run/netns")
BOOT_S = 60.0
VIRTUAL_MEMORY_MB = {"storage": 1024, "compute": 4096}
STOP_S = 10.0
REQUEST_S = 2.0
# The hosts share the machine's kernel, and must not change its clock, load modules or restart it.
CONTAIN = ["setpriv", "--bounding-set", "-sys_time,-sys_module,-sys_boot", "--"]
UNSHARE = ["unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--"]


@dataclass(frozen=True)
class Machine:
    """One host."""

    name: str
    number: int
    site: str
    is_virtual: bool = False
    """Whether it is a virtual machine and not namespaces."""

    def card(self, network: int, kind: str) -> str:
        """Return the address of a network card: the same after a reboot, so that the others' ARP tables stay right."""
        return f"02:00:0a:{NETWORKS.index(kind):02x}:{network:02x}:{self.number:02x}"

    @property
    def gateway(self) -> str:
        return f"10.77.{SITES.index(self.site) + 1}.1"

    @property
    def data_address(self) -> str:
        return f"10.77.{SITES.index(self.site) + 1}.{10 + self.number}"

    def address(self, network: int) -> str:
        return f"10.76.{network}.{10 + self.number}"


@dataclass(frozen=True)
class Plan:
    """What the rack makes."""

    folder: str
    """Folder of its sockets and disks, private to root."""
    machines: list[Machine]
    shared: list[str]
    authorized_key: str
    delays: bool
    """Whether a delay line joins the sites; else they are joined at once, and hosts may use netem."""
    disk_mb: int


class Rack:
    """The namespaces, the link and the hosts."""

    def __init__(self, plan: Plan, stack: ExitStack) -> None:
        self._plan, self._folder = plan, Path(plan.folder)
        self._machines = {machine.name: machine for machine in plan.machines}
        self._hosts: dict[str, Child] = {}
        self._virtual: dict[str, vm.VirtualMachine] = {}
        self.host_keys: dict[str, str] = {}
        """The hosts' public keys by name."""
        _allow_usual_congestion_control()
        NAMESPACES.mkdir(exist_ok=True)
        run("mount", "-t", "tmpfs", "namespaces", str(NAMESPACES))
        for name in ("mgmt", *map(site, SITES)):
            run("ip", "netns", "add", name)
        self.network = self._add_management()
        for number, name in enumerate(SITES, 1):
            _add_site(site(name), number)
        self.link: RelayLink | None = None
        if plan.delays:
            self.link = stack.enter_context(RelayLink(*(str(path(site(name))) for name in SITES), cap_interface="cap"))
        else:
            _join_sites()
        for number, name in enumerate(SITES, 1):
            other = STORAGE_ADDRESS if name == "compute" else COMPUTE_ADDRESS
            run("ip", "-n", site(name), "route", "add", f"10.77.{3 - number}.0/24", "via", other)
        stack.callback(self.stop_all)
        for machine in plan.machines:
            disk = self._disk(machine)
            disk.mkdir(parents=True)
            if not machine.is_virtual:
                run("mount", "-t", "tmpfs", "-o", f"size={plan.disk_mb}m,mode=755", "disk", str(disk))
            self._start(machine)
        for machine in plan.machines:
            self._await(machine)

    def answers(self) -> dict[str, Callable[..., object]]:
        """Return what the tests may do to hosts from outside, by name."""
        return {"pid": self._pid, "stop": self._stop, "start": self._power_on, "cable": self._plug}

    def _pid(self, host: str) -> int | None:
        child = self._hosts.get(host)
        return None if child is None else child.pid

    def _power_on(self, host: str) -> None:
        if host not in self._hosts:
            machine = self._machines[host]
            self._start(machine)
            self._await(machine)

    def _plug(self, host: str, network: str, plugged: bool) -> None:
        machine = self._machines[host]
        bridge = "mgmt" if network == "mgmt" else site(machine.site)
        run("ip", "-n", bridge, "link", "set", f"{network}{machine.number}", "up" if plugged else "down")

    def stop_all(self) -> None:
        """End all hosts."""
        for child in self._hosts.values():
            child.hang_up()
        for name, child in self._hosts.items():
            child.stop(eof_s=0 if name in self._virtual else STOP_S, term_s=0)
        for machine in self._virtual.values():
            machine.stop()

    def _add_management(self) -> int:
        run("ip", "-n", "mgmt", "link", "add", "lan", "up", "type", "bridge")
        taken = subprocess.run(["ip", "-4", "route"], capture_output=True, text=True, check=True).stdout
        for network in range(256):
            if f"10.76.{network}." in taken:
                continue
            interface = f"jfm{network}"
            added = subprocess.run(
                ["ip", "link", "add", interface, "type", "veth", "peer", "name", "machine", "netns", "mgmt"],
                capture_output=True,
                check=False,
            )
            if added.returncode:
                continue  # another rack's
            run("ip", "-n", "mgmt", "link", "set", "machine", "master", "lan", "up")
            run("ip", "address", "add", f"10.76.{network}.1/24", "dev", interface)
            run("ip", "link", "set", interface, "up")
            return network
        raise TestbedError("no network 10.76.N.0/24 is free; end other hosts: ip link")

    def _start(self, machine: Machine) -> None:
        """Power a host on: networks as on a new machine, and its disk as it was."""
        if machine.is_virtual:
            self._start_virtual(machine)
            return
        plan, name, number = self._plan, machine.name, machine.number
        run("ip", "netns", "add", name)
        run("ip", "-n", name, "link", "set", "lo", "up")
        addresses = {
            "mgmt": (machine.address(self.network), "mgmt"),
            "data": (machine.data_address, site(machine.site)),
        }
        for kind, (address, bridge) in addresses.items():
            peer = ["peer", "name", f"{kind}{number}", "netns", bridge]
            card = machine.card(self.network, kind)
            run("ip", "-n", name, "link", "add", f"{kind}0", "address", card, "type", "veth", *peer)
            run("ip", "-n", bridge, "link", "set", f"{kind}{number}", "master", "lan", "up")
            run("ip", "-n", name, "address", "add", f"{address}/24", "dev", f"{kind}0")
            run("ip", "-n", name, "link", "set", f"{kind}0", "up")
        run("ip", "-n", name, "route", "add", "10.77.0.0/16", "via", machine.gateway)
        choose_congestion(str(path(name)), CONGESTION_CONTROL)
        boot = Boot(
            name=name,
            address=machine.address(self.network),
            disk=str(self._disk(machine)),
            shared=plan.shared,
            link_folder=str(self._folder / "link") if plan.delays else None,
            authorized_key=plan.authorized_key,
            known=self._known(),
        )
        child = Child(
            [*CONTAIN, *UNSHARE, sys.executable, "-I", str(Path(__file__).with_name("init.py"))],
            prefix=["nsenter", f"--net={path(name)}", "--"],
            stderr=self._folder / f"{name}.log",
            killed_with_parent=True,
        )
        self._hosts[name] = child
        child.send(json.dumps(asdict(boot)).encode() + b"\n")

    def _start_virtual(self, machine: Machine) -> None:
        name = machine.name
        if name not in self._virtual:
            memory_mb = VIRTUAL_MEMORY_MB[machine.site]
            self._virtual[name] = vm.VirtualMachine(self._image(), self._folder / "disks" / name, memory_mb)
        identity = vm.Identity(
            name=name,
            address=machine.address(self.network),
            data_address=machine.data_address,
            gateway=machine.gateway,
            mgmt_card=machine.card(self.network, "mgmt"),
            data_card=machine.card(self.network, "data"),
            authorized_key=self._plan.authorized_key,
            shared=self._plan.shared,
            known=self._known(),
        )
        self.host_keys[name] = self._virtual[name].prepare(identity)
        taps = []
        for kind, bridge in (("mgmt", "mgmt"), ("data", site(machine.site))):
            tap = f"{kind}{machine.number}"
            taps.append(inside(str(path(bridge)), lambda tap=tap: vm.open_tap(tap)))
            run("ip", "-n", bridge, "link", "set", tap, "master", "lan", "up")
        self._hosts[name] = self._virtual[name].start(taps[0], taps[1], identity)
        for descriptor in taps:
            os.close(descriptor)

    @functools.cache  # noqa: B019 - there is one rack
    def _image(self) -> Path:
        return vm.image()

    def _known(self) -> dict[str, str]:
        return {each.name: each.address(self.network) for each in self._plan.machines}

    def _await(self, machine: Machine) -> None:
        if machine.is_virtual:
            self._virtual[machine.name].wait_ssh(machine.address(self.network))
            return
        try:
            ready = self._hosts[machine.name].ready(BOOT_S)
        except ChildError as error:
            raise TestbedError(f"host {machine.name} {error}") from error
        self.host_keys[machine.name] = str(ready["host_key"])

    def _stop(self, host: str) -> None:
        """Power a host off at once: its cables first, so that nobody is told."""
        machine, child = self._machines[host], self._hosts.pop(host, None)
        if child is None:
            return
        for bridge, interface in (("mgmt", f"mgmt{machine.number}"), (site(machine.site), f"data{machine.number}")):
            run("ip", "-n", bridge, "link", "del", interface)
        child.signal(signal.SIGKILL)
        child.stop()
        if machine.is_virtual:
            self._virtual[machine.name].stop()
            return
        run("ip", "netns", "delete", machine.name)
        for folder in ("run", "tmp"):
            run("rm", "-rf", str(self._disk(machine) / folder))

    def _disk(self, machine: Machine) -> Path:
        return self._folder / "disks" / machine.name


def link_answers(link: Link) -> dict[str, Callable[..., object]]:
    """Return what answers at a link's control socket."""

    def set_regime(regime: dict[str, Any], recalibrate: bool = False) -> None:
        try:
            link.set(Regime.model_validate(regime), recalibrate=recalibrate)
        except ValidationError as error:
            problem = error.errors()[0]
            raise TestbedError(f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}") from error

    return {"set": set_regime, "counters": lambda: asdict(link.counters()), "describe": link.describe}


def serve(
    answers: Mapping[Path, Mapping[str, Callable[..., object]]], stop_fd: int, on_listening: Callable[[], None]
) -> None:
    """Answer calls on sockets, which only this user may connect to, one after the other until the end of `stop_fd`."""
    listeners: dict[socket.socket, Mapping[str, Callable[..., object]]] = {}
    for where, handlers in answers.items():
        listener = socket.socket(socket.AF_UNIX)
        mask = os.umask(0o177)
        listener.bind(str(where))
        os.umask(mask)
        listener.listen()
        listeners[listener] = handlers
    on_listening()
    while True:
        ready, _, _ = select.select([stop_fd, *listeners], (), ())
        if stop_fd in ready and not os.read(stop_fd, 4096):
            return
        for listener in listeners.keys() & set(ready):
            connection, _ = listener.accept()
            with connection, suppress(OSError, EOFError):
                # A client that is silent must not keep the others waiting for long.
                if (line := SocketChannel(connection).read_line(REQUEST_S)) is not None:
                    write = functools.partial(_send, connection)
                    Answers(listeners[listener], (TestbedError, KeyError), write=write).answer(line)


def _send(connection: socket.socket, line: str) -> None:
    connection.sendall(line.encode())


def site(name: str) -> str:
    return f"{name}-site"


def path(namespace: str) -> Path:
    return NAMESPACES / namespace


def run(*argv: str) -> None:
    run_in(None, argv)


def _add_site(name: str, number: int) -> None:
    """Make a site's bridge, its router, and between them the interface that caps the rate."""
    run_in(
        str(path(name)),
        ["ip", "-batch", "-"],
        stdin=f"""\
link set lo up
link add lan up type bridge
link add cap type veth peer name router
link set cap master lan up
address add 10.77.{number}.1/24 dev router
link set router up
""",
    )
    if reason := write_sysctl(str(path(name)), "net.ipv4.ip_forward", "1"):
        raise TestbedError(f"net.ipv4.ip_forward in {name}: {reason}")


def _allow_usual_congestion_control() -> None:
    """Let every namespace choose cubic, as a Debian machine does. It stays: other hosts may use it by the end."""
    if CONGESTION_CONTROL not in (allowed := ALLOWED.read_text().split()):
        ALLOWED.write_text(" ".join([*allowed, CONGESTION_CONTROL]))


def _join_sites() -> None:
    first, second = map(site, SITES)
    run("ip", "-n", first, "link", "add", "jf0", "type", "veth", "peer", "name", "jf0", "netns", second)
    for name, address in ((first, STORAGE_ADDRESS), (second, COMPUTE_ADDRESS)):
        run("ip", "-n", name, "address", "add", f"{address}/30", "dev", "jf0")
        run("ip", "-n", name, "link", "set", "jf0", "up")


def main() -> int:
    fields = json.loads(sys.stdin.readline())
    plan = Plan(**{**fields, "machines": [Machine(**each) for each in fields["machines"]]})
    with ExitStack() as stack:
        try:
            rack = Rack(plan, stack)
        except TestbedError as error:
            print(json.dumps({"error": str(error)}), flush=True)
            return 1
        ready = {"network": rack.network, "host_keys": rack.host_keys}
        answers = {Path(plan.folder) / "rack.sock": rack.answers()}
        if rack.link is not None:
            answers[Path(plan.folder) / "link" / "control"] = link_answers(rack.link)
        serve(answers, sys.stdin.fileno(), lambda: print(json.dumps(ready), flush=True))
    return 0


if __name__ == "__main__":
    os.umask(0o022)
    sys.exit(main())
