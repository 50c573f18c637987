"""How a cell reaches its data: mounts for a loader that reads files, daemons for one that is streamed to.

Data of the storage node comes over the link; data of the compute node is there already. In a local regime all of it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp

from harness.config.regime import Regime
from harness.config.specs import LoaderSpec
from harness.datasets.placement import PlacedData, Role
from harness.run.daemon import Daemon, Keys, serving
from harness.testbed import Testbed
from harness.testbed.base import LOOPBACK, Node
from harness.testbed.memory import MemoryGroup
from harness.testbed.state import RunNames, state_root

_HERE = Regime(name="local")


@dataclass(frozen=True, slots=True)
class DataOnNodes:
    """The dataset of a run, on its nodes."""

    root: Path
    """Of the files, on the node that has them."""
    samples_file: Path
    """The samples by their paths below one root."""
    split_samples_files: Mapping[Role, Path]
    """The samples by their paths below `local/` and `remote/`, by the node that reads them so."""
    shards: Path | None
    """The folder of all shards, whichever node serves them; None where nothing is streamed."""
    placed: PlacedData
    keys: Mapping[str, Keys]
    """The run's keys, by the daemon's module."""


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
    daemons: tuple[Daemon, ...] = ()
    """The compute node's own first."""
    events: tuple[Path, ...] = ()
    """Files of the daemons' timestamps."""


def open_access(
    data: DataOnNodes,
    testbed: Testbed,
    loader: LoaderSpec,
    regime: Regime,
    stack: ExitStack,
    folder: Path,
    memory: MemoryGroup | None = None,
    nodes: Sequence[Node] = (),
) -> dict[Node, DataAccess]:
    """Mount or serve what a cell needs until `stack` is closed; returns how each node reaches it.

    Daemons run in the cell's `memory` group, where it has one; what serves a mount does not. Logs and events go into
    the cell's `folder`. `nodes` are those that train; by default the compute node alone.
    """
    nodes = tuple(dict.fromkeys(nodes)) or (testbed.compute,)
    if loader.reads == "stream":
        return dict.fromkeys(nodes, _served(data, testbed, loader, regime, stack, folder, memory))
    return {node: _mounted(data, testbed, regime, stack, node) for node in nodes}


def _served(
    data: DataOnNodes,
    testbed: Testbed,
    loader: LoaderSpec,
    regime: Regime,
    stack: ExitStack,
    folder: Path,
    memory: MemoryGroup | None,
) -> DataAccess:
    assert data.shards is not None
    keys = data.keys[loader.daemon["module"]] if loader.secure else None
    daemons, events = [], []
    for role in ("compute", "storage"):
        shards = data.placed.shards.get(_role(role))
        if shards is None:
            continue
        # Nodes that both train ask each other.
        here = regime.is_local or (role == "compute" and data.placed.kind != "sharded")
        node = testbed.compute if here or role == "compute" else testbed.storage
        suffix = f"-{role}" if data.placed.split else ""
        times = folder / f"daemon{suffix}-events.jsonl"
        # Two daemons may be on one node: the port that was asked for is the storage node's.
        options = {**loader.daemon, "port": 0} if suffix and role == "compute" else loader.daemon
        serve = serving(
            node if memory is None else memory.node(node),
            LOOPBACK if here else node.address,
            shards,
            options,
            folder / f"daemon{suffix}.log",
            keys=keys,
            events=times,
            regime=None if here else regime,
        )
        daemons.append(stack.enter_context(serve))
        events.append(times)
    return DataAccess("none: streamed", data.shards, data.samples_file, daemons=tuple(daemons), events=tuple(events))


def _role(name: str) -> Role:
    return "compute" if name == "compute" else "storage"


def _mounted(data: DataOnNodes, testbed: Testbed, regime: Regime, stack: ExitStack, node: Node) -> DataAccess:
    far = _HERE if data.placed.kind == "local" else regime
    mount = stack.enter_context(testbed.mount(data.root, far, node))
    if not data.placed.split:
        return DataAccess(mount.kind, data.root, data.samples_file, mount.path)
    near = stack.enter_context(testbed.mount(data.root, _HERE, node))
    # One folder that is half local and half mounted: what the samples' paths lead to lies behind two links.
    seen = Path(mkdtemp(prefix="data-", dir=RunNames(testbed.run_id, state_root()).folder))
    stack.callback(seen.rmdir)
    for name, path in (("local", near.path), ("remote", mount.path)):
        link = seen / name
        link.symlink_to(path.resolve())
        stack.callback(link.unlink)
    samples_file = data.split_samples_files["compute" if node == testbed.compute else "storage"]
    return DataAccess(mount.kind, data.root, samples_file, seen)
