"""The testbed on one machine: a storage and a compute namespace with an emulated link between them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Literal

from harness.config.regime import Regime
from harness.errors import TestbedError
from harness.testbed.base import Mount, Node, ProbeResult, Testbed, missing_tools
from harness.testbed.caches import Caches
from harness.testbed.lifetime import Lifetime
from harness.testbed.link import COMPUTE_ADDRESS, INTERFACE, STORAGE_ADDRESS, Link, LinkKind, open_link
from harness.testbed.link.measure.probe import probe_nodes
from harness.testbed.link.namespace import run_in
from harness.testbed.link.tcp import CONGESTION_CONTROL, choose_congestion
from harness.testbed.local import local_mount
from harness.testbed.mounts.nfs import nfs_obstacles
from harness.testbed.mounts.remote_mounts import RemoteMounts
from harness.testbed.mounts.sshfs import sshfs_obstacles
from harness.testbed.unprivileged import namespace_obstacles, outer_identity

TOOLS = {
    "ip": "iproute2",
    "tc": "iproute2",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "unshare": "util-linux",
    "find": "findutils",
}


def netns_obstacles() -> list[str]:
    """Return what keeps this process from opening a testbed with a link, each with its remedy."""
    found = [*missing_tools(TOOLS), *namespace_obstacles()]
    if nfs_obstacles():
        found += sshfs_obstacles()
    return found


class NetnsTestbed(Testbed):
    """Two network namespaces of this machine, named by the run's id, that see one file system; see `open_testbed`.

    Raises TestbedError when something is missing; the message names it and the remedy. Nothing is left behind.
    """

    kind: Literal["netns"] = "netns"

    def __init__(
        self, run_id: str, link_kind: LinkKind, caches: Caches = "all", congestion: str = CONGESTION_CONTROL
    ) -> None:
        if obstacles := netns_obstacles():
            raise TestbedError(
                f"a testbed with a link cannot be opened here: {'; '.join(obstacles)} "
                "(python -m harness.testbed doctor says more)"
            )
        super().__init__(run_id, caches)
        self._link_kind: LinkKind = link_kind
        self._congestion = congestion
        self._notes: list[str] = []
        with ExitStack() as stack:
            self._lifetime = Lifetime(run_id)
            stack.callback(self._lifetime.close)
            names = self._lifetime.names
            self._storage_ns, self._compute_ns = map(str, names.namespace_paths)
            for role in ("storage", "compute"):
                run_in(None, ["ip", "netns", "add", names.namespace(role)])
            self.storage = Node("storage", run_id, STORAGE_ADDRESS, INTERFACE, self._storage_ns)
            self.compute = Node("compute", run_id, COMPUTE_ADDRESS, INTERFACE, self._compute_ns)
            self.computes, self.storages = (self.compute, replace(self.storage, role="compute")), (self.storage,)
            self.link: Link = self._open_link()
            stack.callback(self._close_link)
            self._mounts = RemoteMounts(self.storage, self.compute, names.folder)
            self._mounts_back: RemoteMounts | None = None
            self._lifetime.wait_guarded()
            self._stack = stack.pop_all()

    def set_regime(self, regime: Regime, *, recalibrate: bool = False) -> None:
        """Give the link the regime's delay and rate; a link that broke in an earlier cell is made again."""
        if regime.is_local:
            return
        try:
            self.link.set(regime, recalibrate=recalibrate)
        except TestbedError as error:
            self._notes.append(f"the link was made again before regime {regime.name}: {error}")
            self.link.close()
            self.link = self._open_link()
            self.link.set(regime)

    def probe(self, regime: Regime) -> ProbeResult | None:
        """Measure the idle link's round trip and rate; None for a local regime."""
        return None if regime.is_local else probe_nodes(self.compute, self.storage, regime)

    @contextmanager
    def mount(
        self, root: Path, regime: Regime, node: Node | None = None, storage: Node | None = None
    ) -> Iterator[Mount]:
        """Let a node see `root` of the other one: afresh through the link, or as it is in a local regime."""
        node = node or self.compute
        if regime.is_local:
            mounting = local_mount(node, root)
        else:
            mounting = (self._mounts if node.address == self.compute.address else self._back()).mount(root, regime)
        with mounting as mount:
            yield mount

    def _back(self) -> RemoteMounts:
        """Return the mounts by which the storage node sees files of the compute node."""
        if self._mounts_back is None:
            folder = self._lifetime.names.folder / "back"
            folder.mkdir(mode=0o700)
            self._mounts_back = RemoteMounts(self.compute, self.storage, folder)
        return self._mounts_back

    def describe(self) -> dict[str, object]:
        """Describe the parts of the testbed."""
        return {
            **super().describe(),
            "user_namespace": outer_identity()[0] != 0,
            "link": self.link.describe(),
            "mount": self._mounts.describe(),
            "notes": list(self._notes),
        }

    def close(self) -> None:
        """Remove the link, both namespaces, every process in them, mounts and keys."""
        self._stack.close()

    def _open_link(self) -> Link:
        link = open_link(self._storage_ns, self._compute_ns, kind=self._link_kind, run_id=self.run_id)
        if self._congestion != CONGESTION_CONTROL:
            try:
                for namespace in (self._storage_ns, self._compute_ns):
                    choose_congestion(namespace, self._congestion)
            except BaseException:
                link.close()
                raise
        return link

    def _close_link(self) -> None:
        # The link that is there by then: it may have been made again.
        self.link.close()
