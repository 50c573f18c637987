"""The remote mount: kernel NFS where client and server exist, sshfs elsewhere."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.config.regime import Regime
from harness.errors import MountError, TestbedError
from harness.testbed.base import Mount, Node
from harness.testbed.mounts.nfs import NfsMounter, export_obstacles, nfs_obstacles
from harness.testbed.mounts.sshfs import SshfsMounter, own_folder

LISTING_TIMEOUT_S = 1800.0


class RemoteMounts:
    """Chooses the mount of the storage node's files that can be made, and makes a fresh one each time.

    `folder` is for keys and mount points, and private to this user; another host has one of the same name.
    """

    def __init__(self, storage: Node, compute: Node, folder: Path) -> None:
        self._storage, self._compute = storage, compute
        own = own_folder(compute, folder)
        self._points = (own / f"mount-{number}" for number in itertools.count())
        self._mounter: NfsMounter | SshfsMounter
        several = storage.is_remote or compute.is_remote
        if obstacles := export_obstacles(storage, compute) if several else nfs_obstacles():
            self._mounter = SshfsMounter(storage, compute, folder)
            self._reason = obstacles[0]
        else:
            self._mounter = NfsMounter(storage, compute, None if several else folder)
            self._reason = "both kernels have NFS" if several else "this kernel has NFS client and server"

    @property
    def kind(self) -> str:
        """How files are mounted: nfs4 or sshfs."""
        return self._mounter.kind

    @contextmanager
    def mount(self, root: Path, regime: Regime) -> Iterator[Mount]:
        """Mount `root` afresh, list all of it, and take it away when the context is left.

        Raises MountError when `root` is no directory, the mount does not come up or cannot be listed.
        """
        if not self._storage.is_remote:
            if not root.is_dir():
                raise MountError(f"{root}: expected a directory to mount")
            root = root.resolve()
        point = next(self._points)
        with self._mounter.mount(root, point, regime) as pids:
            list_tree(self._compute, point)
            yield Mount(point, self._mounter.kind, pids)

    def describe(self) -> dict[str, object]:
        """Describe the kind of mount, and why it was chosen."""
        return {**self._mounter.describe(), "reason": self._reason}


def list_tree(node: Node, root: Path) -> None:
    """Look at every file's attributes once, as a training job does that lists its dataset first.

    Raises MountError when part of the tree cannot be read.
    """
    # No file is that large: find has to look at each and prints none.
    try:
        node.run(["find", str(root), "-size", "+1000000G"], LISTING_TIMEOUT_S)
    except TestbedError as error:
        raise MountError(f"listing {root}: {error}") from error
