"""How a cell reaches its data: mounts for a loader that reads files, daemons for one that is streamed to.

Data of storage nodes comes over the link; data of the compute node is there already. In a local regime all of it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import uuid4

from harness.config.regime import Regime
from harness.config.specs import LoaderSpec
from harness.datasets.placement import numbered
from harness.errors import TestbedError
from harness.run.daemon import RunningDaemon, serving
from harness.run.datasets import StoredData
from harness.testbed import Testbed
from harness.testbed.base import LOOPBACK, Node
from harness.testbed.memory import MemoryGroup

_HERE: Final = Regime(name="local")
_LINK: Final = 'mkdir -m 700 "$0"; while [ $# -gt 0 ]; do ln -s "$1" "$2"; shift 2; done'


@dataclass(frozen=True, slots=True)
class DataAccess:
    """How a cell reaches its data."""

    mount: str
    """How the storage node's files are seen: nfs4, sshfs, local, or that they are streamed."""
    source: Path
    """The files that are read, whose cached pages the kernel drops before an epoch."""
    samples_file: Path
    root: Path | None = None
    """Of the files as the compute node sees them; None for a loader that is streamed to."""
    daemons: tuple[RunningDaemon, ...] = ()
    """The compute node's own first."""
    events: tuple[Path, ...] = ()
    """Files of the daemons' timestamps."""
    parts: tuple[Path, ...] = ()
    """Folders in which daemons find the files of `source`, where each node has some of them or a daemon links them."""
    pids: tuple[int, ...] = ()
    """Processes of this host that serve the mount."""


def open_access(
    data: StoredData,
    testbed: Testbed,
    loader: LoaderSpec,
    regime: Regime,
    stack: ExitStack,
    folder: Path,
    memory: MemoryGroup | None = None,
    nodes: Sequence[Node] = (),
) -> dict[Node, DataAccess]:
    """Mount or serve what a cell needs until `stack` is closed; returns how each node reaches it.

    Daemons run in the group `memory`, where they have one; what serves a mount does not. Logs and events go into
    the cell's `folder`. `nodes` are those that train; by default the compute node alone.
    """
    nodes = tuple(dict.fromkeys(nodes)) or (testbed.compute,)
    if loader.reads != "stream":
        return {node: _mounted(data, testbed, regime, stack, node) for node in nodes}
    placed, served_folder = data.opened.placed, data.opened.served_to(loader)
    has_form = loader.daemon["module"] in data.opened.forms
    owners = {"compute": testbed.compute}
    owners |= {numbered("storage", place): node for place, node in enumerate(testbed.storages)}
    keys = data.keys[loader.daemon["module"]] if loader.secure else None

    def serve(part: str, node: Node, *, here: bool, name: str, port: Mapping[str, int]) -> tuple[RunningDaemon, Path]:
        times = folder / f"{name}-events.jsonl"
        daemon = serving(
            node if memory is None else memory.node(node),
            LOOPBACK if here else node.address,
            served_folder if has_form else placed.shards[part],
            {**loader.daemon, **port},
            folder / f"{name}.log",
            keys=keys,
            events=times,
            regime=None if here else regime,
        )
        return stack.enter_context(daemon), times

    found: dict[Node, list[tuple[RunningDaemon, Path]]] = {node: [] for node in nodes}
    for part in placed.shards:
        name = f"daemon-{part}" if placed.split else "daemon"
        # Nodes that both train ask each other.
        if regime.is_local or (part == "compute" and placed.kind != "sharded"):
            for number, node in enumerate(nodes):
                # Two daemons may be on one node: the port that was asked for is the storage node's.
                port = {"port": 0} if placed.split else {}
                found[node].append(serve(part, node, here=True, name=numbered(name, number), port=port))
        else:
            port = {"port": 0} if part == "compute" else {}
            daemon = serve(part, owners[part], here=False, name=name, port=port)
            for node in nodes:
                found[node].append(daemon)
    return {
        node: DataAccess(
            "none: streamed",
            served_folder,
            data.samples_file,
            # A daemon may serve links beside its form, and map those.
            parts=(served_folder.parent,) if has_form else tuple(placed.shards.values()) if placed.split else (),
            daemons=tuple(daemon for daemon, _ in served),
            events=tuple(times for _, times in served),
        )
        for node, served in found.items()
    }


def _mounted(data: StoredData, testbed: Testbed, regime: Regime, stack: ExitStack, node: Node) -> DataAccess:
    placed, root = data.opened.placed, data.opened.handle.samples.root
    far = _HERE if placed.kind == "local" else regime
    storages = testbed.storages[: placed.storages]
    mounts = [stack.enter_context(testbed.mount(root, far, node, storage)) for storage in storages]
    pids = tuple(pid for mount in mounts for pid in mount.pids)
    if not placed.split:
        return DataAccess(mounts[0].kind, root, data.samples_file, mounts[0].path, pids=pids)
    roots = {numbered("remote", place): mount.path for place, mount in enumerate(mounts)}
    if placed.on_compute.any():
        roots["local"] = stack.enter_context(testbed.mount(root, _HERE, node)).path
    # One folder whose parts lie on several nodes: what the samples' paths lead to lies behind a link for each.
    seen = node.folder / f"data-{uuid4().hex[:8]}"
    links = [str(part) for name, path in roots.items() for part in (path.absolute(), seen / name)]
    node.run(["sh", "-euc", _LINK, str(seen), *links])
    stack.callback(_remove, node, seen)
    is_second = placed.kind == "sharded" and node != testbed.compute
    samples_file = data.split_samples_files["storage" if is_second else "compute"]
    return DataAccess(mounts[0].kind, root, samples_file, seen, pids=pids)


def _remove(node: Node, seen: Path) -> None:
    # It goes with the run at the latest, and so it does where the host is lost.
    with suppress(TestbedError):
        node.run(["sh", "-euc", 'rm "$0"/* && rmdir "$0"', str(seen)])
