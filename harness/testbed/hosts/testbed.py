"""The testbed of several hosts, as the lead sees it: this host trains, others train or store, reached over SSH."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from energymon.clock.monotonic import boot_id
from harness.config.regime import Regime
from harness.config.specs import WallMeters
from harness.errors import ConfigError, MountError, TestbedError
from harness.system.procfs import sum_disks
from harness.testbed.base import LOOPBACK, Mount, Node, ProbeResult, Testbed
from harness.testbed.caches import Caches, drop_caches
from harness.testbed.hosts.connection import HostConnection, Lease, RemoteNode, beating
from harness.testbed.hosts.inventory import LEAD_SSH_CONFIG, Host, Inventory
from harness.testbed.lifetime import Lifetime
from harness.testbed.link import LinkKind
from harness.testbed.link.base import NO_PATHS, Link
from harness.testbed.link.measure.probe import probe_nodes, rtt_probe
from harness.testbed.link.netem_link import HostsNetemLink
from harness.testbed.link.socket_link import SocketLink
from harness.testbed.link.tcp import CONGESTION_CONTROL, choose_congestion
from harness.testbed.local import local_mount
from harness.testbed.mounts.remote_mounts import RemoteMounts

BEAT_S: Final = 2.0
CACHES_TIMEOUT_S: Final = 120.0
DISKS_TIMEOUT_S: Final = 10.0


class HostLostError(TestbedError):
    """A host of the run does not answer any more."""


@dataclass(frozen=True, slots=True)
class HostsOfRun:
    """The hosts of an inventory that take part in a run."""

    computes: tuple[Host, ...]
    """Those that train, the lead first."""
    storages: tuple[Host, ...]
    """Those whose data comes over the link; the second of two that train where each has half of the data."""
    idle: tuple[Host, ...]
    """Those that could compute or store, and do neither."""

    @classmethod
    def choose(cls, inventory: Inventory, world_size: int, *, sharded: bool) -> HostsOfRun:
        """Return the first compute host of each rank, and the storage hosts that do not train.

        Raises ConfigError where `sharded`, and there are other than two compute hosts.
        """
        computes = inventory.hosts("compute")
        if sharded and len(computes) != 2:
            raise ConfigError(
                f"inventory {inventory.source}: group compute: placement=sharded has half of the data on each of two "
                f"compute hosts, and the group has {len(computes)} ({', '.join(host.name for host in computes)})"
            )
        computes = computes[:world_size]
        # Data of a host that trains is not far. With a link, a run on such hosts alone is refused.
        storages = tuple(host for host in inventory.hosts("storage") if host not in computes)
        storages = computes[1:] if sharded else storages or inventory.hosts("storage")[:1]
        able = dict.fromkeys((*inventory.hosts("compute"), *inventory.hosts("storage")))
        return cls(computes, storages, tuple(host for host in able if host not in (*computes, *storages)))


class HostsTestbed(Testbed):
    """The hosts of an inventory that a run uses. It runs on the lead.

    Args:
        run_id: 1 to 32 letters and digits.
        inventory: all hosts.
        chosen: those that take part, the lead among them.
        regimes: the regimes that the testbed will be set to.
        link_kind: `relay` for a delay line behind the lead's control socket, `netem` for the hosts' own; `auto` for the
            former where there is a socket.
        caches: what the kernels forget before an epoch.
        congestion: TCP's congestion control on this host, of those that its kernel has.
        ssh_config: how the other hosts are reached.

    Raises TestbedError when a host cannot be reached or lacks something; the message names it and the remedy.
    """

    kind: Literal["ssh"] = "ssh"

    def __init__(
        self,
        run_id: str,
        inventory: Inventory,
        chosen: HostsOfRun,
        regimes: Sequence[Regime],
        *,
        link_kind: LinkKind = "auto",
        caches: Caches = "all",
        congestion: str = CONGESTION_CONTROL,
        ssh_config: Path = LEAD_SSH_CONFIG,
    ) -> None:
        super().__init__(run_id, caches)
        self._lead = inventory.lead
        self._walls = {host.name: host.wall for host in inventory.all}
        self._ssh_config = ssh_config
        self._hosts = {host.name: host for host in (*chosen.computes, *chosen.storages)}
        self._leases: dict[str, Lease] = {}
        self._boots: dict[str, str] = {self._lead.name: boot_id()}
        self._seen: list[tuple[Node, Path]] = []
        """Mount points, and the hosts that they are on."""
        self._mounts: dict[tuple[str, str], RemoteMounts] = {}
        """By the host that stores and the one that mounts."""
        with ExitStack() as stack:
            self._lifetime = Lifetime(run_id)
            stack.callback(self._lifetime.close)
            self._lifetime.wait_guarded()
            stack.callback(self._release)
            others = [host for host in self._hosts.values() if host.name != self._lead.name]
            for host in others:
                self._leases[host.name] = Lease(self._connection(host), run_id)
            stack.enter_context(beating(self._beat, BEAT_S))
            facts = {name: lease.wait_ready() for name, lease in self._leases.items()}
            self._boots |= {name: str(found["boot"]) for name, found in facts.items()}
            folders = {name: Path(str(found["folder"])) for name, found in facts.items()}
            self.computes = tuple(self._node(host, "compute", folders) for host in chosen.computes)
            self.storages = tuple(self._node(host, "storage", folders) for host in chosen.storages)
            self.compute, self.storage = self.computes[0], self.storages[0]
            if any(not regime.is_local for regime in regimes):
                self.link = self._open_link(link_kind)
                stack.callback(self.link.close)
                unequal = next((regime for regime in regimes if regime.paths), None)
                if unequal is not None and self.link.kind == "netem":
                    raise TestbedError(f"regimes.{unequal.name}.paths: {NO_PATHS}")
                if congestion != CONGESTION_CONTROL:
                    choose_congestion(None, congestion)
                self._mounts_between(self.storage, self.compute)
            self._stack = stack.pop_all()

    def wall_of(self, host: str) -> WallMeters:
        """Return the meter at a host's supply that the inventory names; None for none."""
        return self._walls.get(host)

    def shares_clock(self, host: str) -> bool:
        """Whether a host's clock is this machine's own: a container or a namespace of the same kernel."""
        return self._boots[host] == boot_id()

    def require(self) -> None:
        """Raise HostLostError, which names them, when hosts are lost."""
        if lost := [f"host {name} is lost: {why}" for name, lease in self._leases.items() if (why := lease.look())]:
            raise HostLostError("; ".join(lost))

    def probe(self, regime: Regime) -> ProbeResult | None:
        """Measure the idle link's rate to the first storage node, and the round trips to each from each compute node.

        The result has the round trip that is farthest from the regime's. None for a local regime.
        """
        if regime.is_local:
            return None
        found = probe_nodes(self.compute, self.storage, regime)
        pairs = [(node, storage) for node in self.computes for storage in self.storages if node.host != storage.host]
        if len(pairs) == 1:
            return found
        with ThreadPoolExecutor(len(pairs) - 1) as threads:
            trips = [found, *threads.map(lambda pair: rtt_probe(pair[0], pair[1].address), pairs[1:])]
        named = zip(trips, pairs, strict=True)
        worst, (node, storage) = max(named, key=lambda one: abs(one[0].rtt_ms_median - regime.rtt_ms))
        return replace(
            found,
            rtt_ms_median=worst.rtt_ms_median,
            rtt_ms_min=worst.rtt_ms_min,
            rtt_ms_p99=worst.rtt_ms_p99,
            rtt_samples=worst.rtt_samples,
            pair=f"{node.host} – {storage.host}",
        )

    @contextmanager
    def mount(
        self, root: Path, regime: Regime, node: Node | None = None, storage: Node | None = None
    ) -> Iterator[Mount]:
        """Let a host see `root` of a storage host; in a local regime its own folder of that name."""
        node, storage = node or self.compute, storage or self.storage
        if storage.host == node.host:
            # Of two hosts that train and store, each sees the other's.
            storage = self.compute
        mounting = (
            local_mount(node, root) if regime.is_local else self._mounts_between(storage, node).mount(root, regime)
        )
        with mounting as mount:
            self._seen.append((node, mount.path))
            try:
                yield mount
            finally:
                self._seen.remove((node, mount.path))

    def drop_caches(self, root: Path, parts: Sequence[Path] = ()) -> str:
        """Have the kernels of all hosts forget what they cache of the files under `root`; return how."""

        def drop(node: Node) -> set[str]:
            seen = [str(point) for on, point in self._seen if on.host == node.host]
            argv = [sys.executable, "-m", "harness.testbed.caches", self._caches, *map(str, (root, *parts)), *seen]
            return set(node.run(argv, CACHES_TIMEOUT_S).splitlines())

        with ThreadPoolExecutor(max(1, len(self.remotes))) as threads:
            ways = set().union(*threads.map(drop, self.remotes.values()))
        # A folder of the storage hosts need not be on this one.
        here = [folder for folder in (root, *parts) if folder.is_dir()]
        here += [point for on, point in self._seen if on.host == self.compute.host]
        return " and ".join(sorted(ways | {drop_caches(one, self._caches) for one in here}, reverse=True))

    def storage_disk_bytes(self) -> int | None:
        """Return bytes read so far from the disks of the hosts that store and do not train; None where none shows any.

        Raises TestbedError when a host does not answer.
        """
        training = {node.host for node in self.computes}
        found = []
        for node in self.storages:
            if node.host not in training:
                told = node.run(["sh", "-c", "ls /sys/block; echo; cat /proc/diskstats"], DISKS_TIMEOUT_S)
                names, _, stats = told.partition("\n\n")
                disks = sum_disks(stats, names.split())
                found.append(None if disks is None else disks[0])
        known = [read for read in found if read is not None]
        return sum(known) if known and len(known) == len(found) else None

    def describe(self) -> dict[str, object]:
        """Describe the parts of the testbed."""
        hosts = {
            name: {"roles": list(host.roles), "data_address": host.data_address, "data_interface": host.data_interface}
            for name, host in self._hosts.items()
        }
        parts: dict[str, object] = {"lead": self._lead.name, "hosts": hosts}
        if self.link is not None:
            mounts = self._mounts_between(self.storage, self.compute)
            parts |= {"link": self.link.describe(), "mount": mounts.describe()}
        return {**super().describe(), **parts}

    def close(self) -> None:
        """Remove the link, mounts and processes on all hosts; closing twice is harmless."""
        self._stack.close()

    def _node(self, host: Host, role: Literal["storage", "compute"], folders: Mapping[str, Path]) -> Node:
        address = host.data_address or LOOPBACK
        node = Node(role, self.run_id, address, host.data_interface, host=host.name)
        if host.name == self._lead.name:
            return node
        connection = self._leases[host.name].connection
        return RemoteNode(
            role,
            self.run_id,
            address,
            host.data_interface,
            host=host.name,
            connection=connection,
            there=folders[host.name],
        )

    def _mounts_between(self, storage: Node, compute: Node) -> RemoteMounts:
        """Return what mounts files of one host on another one.

        Raises MountError when it cannot, or mounts in another way than the other hosts of the run.
        """
        pair = (storage.host, compute.host)
        if pair not in self._mounts:
            folder = self._lifetime.names.folder / f"mounts-{len(self._mounts)}"
            folder.mkdir(mode=0o700)
            made = RemoteMounts(storage, compute, folder)
            for (owner, user), other in self._mounts.items():
                if other.kind != made.kind:
                    raise MountError(
                        f"host {compute.host} would mount files of {storage.host} by {made.kind}, and {user} those of "
                        f"{owner} by {other.kind}: expected one way for all; hosts of the group storage serve NFS"
                    )
            self._mounts[pair] = made
        return self._mounts[pair]

    def _connection(self, host: Host) -> HostConnection:
        socket = self._lifetime.names.folder / f"ssh-{len(self._leases)}"
        return HostConnection(host.name, ("-F", str(self._ssh_config), host.name), socket, host.python)

    def _open_link(self, kind: LinkKind) -> Link:
        socket = self._lead.link_socket
        if socket is not None and kind != "netem":
            return SocketLink(self.compute, Path(socket))
        if kind == "relay":
            raise TestbedError(
                f"testbed.link=relay: host {self._lead.name} has no joulefeed_link_socket; use testbed.link=netem"
            )
        far = {node.host for node in self.storages if node.is_remote}
        near = [node for node in self.computes if node.host not in far]
        return HostsNetemLink(near, [node for node in self.storages if node.is_remote])

    def _beat(self) -> None:
        for lease in self._leases.values():
            lease.beat()

    def _release(self) -> None:
        """Give the leases up, all at once; raises TestbedError for hosts on which something is left."""
        problems: list[str] = []

        def close(lease: Lease) -> None:
            try:
                lease.close()
            except TestbedError as error:
                problems.append(str(error))

        with ThreadPoolExecutor(max(1, len(self._leases))) as threads:
            list(threads.map(close, self._leases.values()))
        if problems:
            raise TestbedError("; ".join(problems))
