"""What a testbed offers: two nodes, a link between them, a remote mount and cold caches."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from harness.config.specs import WallMeters
from harness.errors import TestbedError
from harness.system.process import run_environment
from harness.testbed.caches import Caches, drop_caches, how_dropped
from harness.testbed.state import RunNames, state_root
from joulefeed.child import Child

if TYPE_CHECKING:
    from harness.config.regime import Regime
    from harness.testbed.link import Link


LOOPBACK = "127.0.0.1"
_MAX_ERROR_LINES = 20
_JOIN = 'echo $$ >"$0" && exec "$@"'
"""Before anything else, so that all that the process allocates is counted where it belongs."""


@dataclass(frozen=True, slots=True)
class Node:
    """A place where processes of a run are started."""

    role: Literal["storage", "compute"]
    run_id: str
    """The run that its processes belong to; they carry it in their environment."""
    address: str = LOOPBACK
    """Address on the data network."""
    interface: str | None = None
    """Interface of the data network; None where the data stays on the machine."""
    namespace: str | None = None
    """Path of its network namespace; None for the machine's own."""
    memory_group: Path | None = None
    """Control group that its processes start in; None for the caller's."""
    host: str = field(default_factory=platform.node)
    """Name of its host: that of the inventory, or else this machine's."""

    @property
    def is_remote(self) -> bool:
        """Whether it is another host, which has files of its own."""
        return False

    @property
    def folder(self) -> Path:
        """Folder of the run on this node's host, which ends with the run; only its user may look into it."""
        return RunNames(self.run_id, state_root()).folder

    def fetch(self, there: Path, here: Path) -> None:
        """Copy the content of a folder of this node into the folder `here`; nothing where both are the same folder.

        Raises TestbedError when the node is another host, and the folder cannot be copied.
        """
        assert there == here, f"{self.host} sees the files of this process: {there} is not {here}"

    def start(
        self,
        argv: Sequence[str],
        *,
        stdin: int = subprocess.DEVNULL,
        stdout: int | None = None,
        stderr: Path | int | None = None,
        keep_stderr: bool = False,
    ) -> Child:
        """Start a process on this node, in a process group of its own; it is killed when the caller dies.

        The kernel takes the calling thread for the parent: call from a thread that lives as long as the process. A
        missing command is an exit status of 127.

        Args:
            argv: command and arguments.
            stdin: as `Child` takes it; empty by default.
            stdout: the same; the caller's by default.
            stderr: the same; the caller's by default.
            keep_stderr: whether stderr goes to a temporary file, for messages; false by default.

        Raises TestbedError when a tool that starts it is not installed.
        """
        join = ["sh", "-c", _JOIN, str(self.memory_group / "cgroup.procs")] if self.memory_group else []
        enter = ["nsenter", f"--net={self.namespace}", "--"] if self.namespace else []
        try:
            return Child(
                argv,
                prefix=[*join, *enter],
                env=self._environment(),
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                keep_stderr=keep_stderr,
                killed_with_parent=True,
            )
        except FileNotFoundError as error:
            raise TestbedError(
                f"{error.filename} is not there, so nothing can be started on the {self.role} node: "
                "apt-get install util-linux"
            ) from error

    def _environment(self) -> dict[str, str]:
        environment = run_environment(self.run_id)
        if (folder := self.folder).is_dir():
            # What processes leave in their temporary folder when they are killed goes with the run's own.
            temporary = folder / "tmp"
            temporary.mkdir(mode=0o700, exist_ok=True)
            environment["TMPDIR"] = str(temporary)
        return environment

    def run(self, argv: Sequence[str], timeout_s: float = 60.0) -> str:
        """Run a command on this node to its end and return its standard output.

        Raises TestbedError when it failed or took longer than `timeout_s`; the message holds its standard error.
        """
        with self.start(argv, stdout=subprocess.PIPE, keep_stderr=True) as child:
            return self._finish(child, argv, timeout_s)

    def _finish(self, child: Child, argv: Sequence[str], timeout_s: float) -> str:
        what = f"{shlex.join(argv)} on {f'host {self.host}' if self.is_remote else f'the {self.role} node'}"
        output = child.finish(timeout_s)
        if output is None:
            raise TestbedError(f"{what}: no end within {timeout_s:g} s")
        if status := child.process.returncode:
            raise TestbedError(f"{what}: {child.stderr_lines(_MAX_ERROR_LINES) or f'exit status {status}'}")
        return output.decode()


def admin_path() -> str:
    """Return the PATH with the folders of tools for administrators, which ordinary users' lacks."""
    return f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin"


def missing_tools(packages: Mapping[str, str], path: str | None = None) -> list[str]:
    """Return which tools this machine lacks in a `path`, by default its PATH, each with its package of Debian."""
    return [
        f"{tool} is not installed: apt-get install {package}"
        for tool, package in packages.items()
        if shutil.which(tool, path=path) is None
    ]


@dataclass(frozen=True, slots=True)
class Mount:
    """A directory of the storage node as the compute node sees it."""

    path: Path
    kind: Literal["nfs4", "sshfs", "local"]
    pids: tuple[int, ...] = ()
    """Processes and kernel threads of this host that serve it."""


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What the link did for the moment of the probe."""

    rtt_ms_median: float
    rtt_ms_min: float
    rtt_ms_p99: float
    rtt_samples: int
    """Number of round trips measured."""
    rate_gbit: float | None
    """Gbit/s of IP packets from storage to compute; None where it was not asked for."""
    jitter_ms: float | None = None
    """Standard deviation of the one-way delay, from the spread of the round trips; None where it was not asked for."""
    packets_to_compute: int | None = None
    """UDP packets that were sent from storage to compute to see which are lost; None where it was not asked for."""
    lost_to_compute: int | None = None
    packets_to_storage: int | None = None
    lost_to_storage: int | None = None
    pair: str | None = None
    """Between which hosts the round trip was measured; None where there is one pair of them."""


class Testbed(ABC):
    """Two nodes and the link between them; closing removes everything that was made."""

    kind: Literal["local", "netns", "ssh"]
    """`local` has no link; `netns` is two network namespaces of this machine; `ssh` is several hosts."""
    storage: Node
    """The node that holds the data."""
    compute: Node
    """The node that trains."""
    computes: tuple[Node, ...]
    """The nodes that can train, `compute` first; in a netns testbed the storage node is the second one."""
    storages: tuple[Node, ...]
    """The nodes that hold the data, `storage` first."""
    link: Link | None = None
    """The link between the nodes; None for local."""

    def __init__(self, run_id: str, caches: Caches) -> None:
        self.run_id = run_id
        """Part of every name that the testbed gives."""
        self._caches: Caches = caches

    @property
    def remotes(self) -> dict[str, Node]:
        """One node of each other host, by the host's name; none on one machine."""
        return {node.host: node for node in (*self.computes, *self.storages) if node.is_remote}

    def set_regime(self, regime: Regime, *, recalibrate: bool = False) -> None:
        """Give the link the regime's delay and rate; a local regime leaves it alone.

        With `recalibrate` a link that was calibrated for this round trip is calibrated again. Raises TestbedError when
        the testbed has no link, or the link is broken.
        """
        if not regime.is_local:
            assert self.link is not None
            self.link.set(regime, recalibrate=recalibrate)

    @abstractmethod
    def probe(self, regime: Regime) -> ProbeResult | None:
        """Measure the idle link's round trip and rate; None for a local regime.

        Raises TestbedError when the link does not answer.
        """

    @abstractmethod
    def mount(
        self, root: Path, regime: Regime, node: Node | None = None, storage: Node | None = None
    ) -> AbstractContextManager[Mount]:
        """Let the compute node see `root`: mounted for this context through the link, or as it is in a local regime.

        Of several compute nodes `node` sees it, and of several storage nodes it is that of `storage`. Where data is on
        two compute nodes, each sees `root` of the other one.

        Every directory is listed before, so that attributes are known. Raises MountError when the mount could not be
        made.
        """

    def require(self) -> None:
        """Raise TestbedError, which names them, when hosts of the testbed are lost; one machine cannot be."""
        return

    def wall_of(self, host: str) -> WallMeters:
        """Return the meter at a host's supply that the inventory names; None for none, as on one machine."""
        return None

    def shares_clock(self, host: str) -> bool:
        """Whether a host's clock is this machine's own; one machine has one clock."""
        return True

    def drop_caches(self, root: Path, parts: Sequence[Path] = ()) -> str:
        """Forget what the kernel caches of the files under `root`; return how, as `harness.testbed.caches` does.

        `parts` are further folders with the same files.
        """
        return drop_caches(root, self._caches, [*self.compute.folder.glob("mount-*"), *parts])

    def storage_disk_bytes(self) -> int | None:
        """Return bytes read so far from the disks of the other hosts that store; None where there is no such host."""
        return None

    def describe(self) -> dict[str, object]:
        """Describe the parts of the testbed, for a run's provenance."""
        return {"kind": self.kind, "run_id": self.run_id, "caches": how_dropped(self._caches)}

    @abstractmethod
    def close(self) -> None:
        """Remove everything that was made; closing twice is harmless."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
