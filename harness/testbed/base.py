"""What a testbed offers: two nodes, a link between them, a remote mount and cold caches."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

from harness.errors import TestbedError
from harness.system.process import PROCESS_GRACE_S, dying_with_parent, end_group, run_environment
from harness.testbed.state import RunNames, state_root

if TYPE_CHECKING:
    from harness.config.regime import Regime
    from harness.testbed.link import Link
    from harness.testbed.probe import ProbeResult

__all__ = ["Mount", "Node", "Testbed"]

LOOPBACK = "127.0.0.1"
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

    def popen(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[Any]:
        """Start a process on this node, in a process group of its own; it is killed when the caller dies.

        The kernel takes the calling thread for the parent: call from one that lives as long as the process.

        Args:
            argv: command and arguments.
            env: its environment instead of the caller's; the run's id is added.
            options: further keywords of `subprocess.Popen`; standard input is empty unless given.

        Raises:
            TestbedError: a tool that starts it is not installed. A missing command is told by exit status 127.
        """
        join = ["sh", "-c", _JOIN, str(self.memory_group / "cgroup.procs")] if self.memory_group else []
        enter = ["nsenter", f"--net={self.namespace}", "--"] if self.namespace else []
        options.setdefault("stdin", subprocess.DEVNULL)
        command = [*join, *enter, *dying_with_parent(argv)]
        try:
            return subprocess.Popen(command, env=self._environment(env), process_group=0, **options)
        except FileNotFoundError as error:
            raise TestbedError(
                f"{error.filename} is not there, so nothing can be started on the {self.role} node: "
                "apt-get install util-linux"
            ) from error

    def _environment(self, base: Mapping[str, str] | None) -> dict[str, str]:
        environment = run_environment(self.run_id, base)
        folder = RunNames(self.run_id, state_root()).folder
        if folder.is_dir():
            # What processes leave in their temporary folder when they are killed goes with the run's own.
            temporary = folder / "tmp"
            temporary.mkdir(mode=0o700, exist_ok=True)
            environment["TMPDIR"] = str(temporary)
        return environment

    def run(self, argv: Sequence[str], timeout_s: float = 60.0) -> str:
        """Run a command on this node to its end and return its standard output.

        Raises:
            TestbedError: it failed or took longer than `timeout_s`; the message holds its standard error.
        """
        process = self.popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        what = f"{shlex.join(argv)} on the {self.role} node"
        try:
            out, said = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            raise TestbedError(f"{what}: no end within {timeout_s:g} s") from error
        finally:
            end_group(process, grace_s=PROCESS_GRACE_S if process.poll() is None else 0.0)
        if process.returncode:
            reason = said.strip() or f"exit status {process.returncode}"
            raise TestbedError(f"{what}: {reason}")
        return str(out)


@dataclass(frozen=True, slots=True)
class Mount:
    """A directory of the storage node as the compute node sees it."""

    path: Path
    kind: Literal["nfs4", "sshfs", "local"]


class Testbed(Protocol):
    """Two nodes and what lies between them; closing removes everything that was made."""

    @property
    def kind(self) -> Literal["local", "netns"]:
        """`local` has no link; `netns` is two network namespaces of this machine."""

    @property
    def run_id(self) -> str:
        """Part of every name that the testbed gives."""

    @property
    def storage(self) -> Node:
        """The node that holds the data."""

    @property
    def compute(self) -> Node:
        """The node that trains."""

    @property
    def link(self) -> Link | None:
        """The link between the nodes; None for local."""

    def set_regime(self, regime: Regime) -> None:
        """Give the link the regime's delay and rate; a local regime leaves it alone.

        Raises:
            TestbedError: the testbed has no link, or the link is broken.
        """

    def probe(self, regime: Regime) -> ProbeResult | None:
        """Measure the idle link's round trip and rate; None for a local regime.

        Raises:
            TestbedError: the link does not answer.
        """

    def mount(self, root: Path, regime: Regime) -> AbstractContextManager[Mount]:
        """Let the compute node see `root`: afresh through the link, or as it is in a local regime.

        Every directory is listed before the mount is handed out, so that attributes are known.

        Raises:
            MountError: the mount could not be made.
        """

    def drop_caches(self, root: Path) -> str:
        """Forget what the kernel caches of the files under `root`; return how: vm.drop_caches or fadvise."""

    def describe(self) -> dict[str, object]:
        """Tell, for a run's provenance, what the testbed is made of."""

    def close(self) -> None:
        """Remove everything that was made; closing twice is harmless."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
