"""From the lead to another host of a run: one SSH connection, the lease that it carries, and processes over it."""

from __future__ import annotations

import os
import select
import shlex
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final, cast

from harness.errors import TestbedError
from harness.system.process import run_environment
from harness.testbed.base import Node
from harness.testbed.hosts.inventory import Host
from harness.testbed.hosts.supervisor import BEAT, SILENCE_S, RemoteCommand
from joulefeed.child import Child, ChildError

CONNECT_S: Final = 10
START_S: Final = 120.0
"""A slow host takes a while to log in, and to start Python and a reaper."""
END_S: Final = 40.0
"""What the removal of a run may take: it kills processes, and they may hang in a mount."""
COPY_S: Final = 60.0
"""A copy has failed when no byte of it comes for so long."""
MODULE: Final = "harness.testbed.hosts.supervisor"
LOST: Final = 255
"""Exit status of ssh where it is the connection that failed."""
OPTIONS: Final = (
    *("BatchMode=yes", "StrictHostKeyChecking=yes"),
    *("ServerAliveInterval=5", "ServerAliveCountMax=3", f"ConnectTimeout={CONNECT_S}", "LogLevel=ERROR"),
    "UpdateHostKeys=no",
)
"""A host that does not answer for 15 s is lost."""


@dataclass(frozen=True, slots=True)
class HostConnection:
    """How commands of one host are started. A key that site.yml made starts the supervisor whatever is asked for."""

    host: str
    """Its name in the inventory."""
    destination: tuple[str, ...]
    """Arguments of ssh that name the host: user and address, port, key, known_hosts; none for this machine."""
    socket: Path
    """Where sessions meet the connection that they share."""
    python: str
    """That host's interpreter that has this package."""

    def command(self, there: Sequence[str], *, is_master: bool = False) -> list[str]:
        """Return the command that runs `there` on the host; it asks no questions and adds no host key."""
        if not self.destination:
            return list(there)
        mux = (f"ControlMaster={'yes' if is_master else 'no'}", f"ControlPath={self.socket}")
        options = [part for option in (*OPTIONS, *mux) for part in ("-o", option)]
        return ["ssh", "-T", *options, *self.destination, shlex.join(there)]

    def start(
        self,
        order: RemoteCommand,
        *,
        is_master: bool = False,
        stdout: int | None = subprocess.PIPE,
        stderr: Path | int | None = None,
        keep_stderr: bool = False,
    ) -> Child:
        """Start the supervisor and give it an order; the first connection is the `master` of the others.

        Raises TestbedError when it cannot be started.
        """
        is_root_here = not self.destination and os.geteuid() == 0
        there = [*(() if is_root_here else ("sudo", "-n")), self.python, "-m", MODULE]
        try:
            child = Child(
                self.command(there, is_master=is_master),
                env=run_environment(order.run_id),
                stdout=stdout,
                stderr=stderr,
                keep_stderr=keep_stderr,
                killed_with_parent=True,
            )
        except FileNotFoundError as error:
            raise TestbedError(f"{error.filename} is not there: apt-get install openssh-client util-linux") from error
        # An ssh that has ended already says why where its output or status is read.
        with suppress(ChildError):
            child.send(order.to_line())
        return child


def reach(host: Host) -> HostConnection:
    """Return how the controller reaches a host: as Ansible does, or without SSH where the host is this machine."""
    # No file of the controller's own, which would stay when it is killed: each session has a connection.
    socket = Path("none")
    if host.connection == "local":
        return HostConnection(host.name, (), socket, host.python)
    key = ("-i", host.identity_file, "-o", "IdentitiesOnly=yes") if host.identity_file else ()
    user = ("-l", host.user) if host.user else ()
    destination = ("-p", str(host.port), *key, *user, *shlex.split(host.ssh_args), "--", host.address)
    return HostConnection(host.name, destination, socket, host.python)


@contextmanager
def beating(beat: Callable[[], None], every_s: float) -> Iterator[None]:
    """Call `beat` every so many seconds, in a thread, while the context lasts."""
    over = threading.Event()

    def run() -> None:
        while not over.wait(every_s):
            beat()

    thread = threading.Thread(target=run, name="heartbeats", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


class Lease:
    """A run's record on another host: as long as `beat` is called, and the host can be reached.

    Raises TestbedError when the host cannot be reached, or does not start the supervisor.
    """

    def __init__(self, connection: HostConnection, run_id: str) -> None:
        self.connection = connection
        order = RemoteCommand(run_id=run_id, silence_s=SILENCE_S)
        self._child = connection.start(order, is_master=True, keep_stderr=True)
        self.lost: str | None = None
        """Why the host is lost; None while it is there."""

    def wait_ready(self) -> Mapping[str, object]:
        """Wait until the host has the run's record; returns its folder, hostname and boot id.

        Raises TestbedError when it does not.
        """
        try:
            return self._child.ready(START_S)
        except ChildError as error:
            self.lost = words = self._child.stderr_lines(1) or str(error)
            self._child.stop(eof_s=0)
            raise TestbedError(
                f"host {self.connection.host}: {words}; python -m harness.testbed up sets it up"
            ) from error

    def look(self) -> str | None:
        """Return why the host is lost; None while it is there."""
        if self.lost is None and not self._child.is_alive:
            self.lost = f"its connection {self._child.describe_end()}"
        return self.lost

    def beat(self) -> None:
        """Say that the lead lives; a host that is gone is `lost` from then on."""
        if self.look() is not None:
            return
        # A connection that is stuck must not block the beats of others: its pipe fills, and ssh gives up first.
        if select.select((), (self._child.input_fd,), (), 0)[1]:
            with suppress(ChildError):
                self._child.send(BEAT)

    def close(self) -> None:
        """Have the host remove all that the run has there; closing twice is harmless.

        Raises TestbedError when it could not, or the host is lost: its own lease removes it there.
        """
        status = self._child.stop(eof_s=0.0 if self.lost else END_S, term_s=1.0)
        if self.lost is None and status:
            self.lost = self._child.describe_end()
            raise TestbedError(f"host {self.connection.host}: what the run has there was not removed: {self.lost}")


@dataclass(frozen=True, slots=True)
class RemoteNode(Node):
    """A node on another host, which the lead reaches over a connection."""

    connection: HostConnection = field(kw_only=True)
    there: Path = field(kw_only=True)
    """The run's folder on that host."""

    @property
    def is_remote(self) -> bool:
        """Whether it is another host: always."""
        return True

    @property
    def folder(self) -> Path:
        """Folder of the run on that host."""
        return self.there

    def start(
        self,
        argv: Sequence[str],
        *,
        stdin: int = subprocess.DEVNULL,
        stdout: int | None = None,
        stderr: Path | int | None = None,
        keep_stderr: bool = False,
    ) -> Child:
        """Start a process on that host, as `Node.start` does; this process's interpreter stands for that host's."""
        order = self._order(argv, gets_input=stdin == subprocess.PIPE)
        return self.connection.start(order, stdout=stdout, stderr=stderr, keep_stderr=keep_stderr)

    def run(self, argv: Sequence[str], timeout_s: float = 60.0) -> str:
        """Run a command on that host to its end and return its standard output, as `Node.run` does."""
        order = self._order(argv, linger_s=timeout_s)
        with self.connection.start(order, keep_stderr=True) as child:
            return self._finish(child, argv, timeout_s)

    def fetch(self, there: Path, here: Path) -> None:
        """Copy the content of a folder of that host into the folder `here`.

        Raises TestbedError when it cannot be copied.
        """
        order = self._order(["tar", "-C", str(there), "-cf", "-", "."], linger_s=COPY_S)
        with self.connection.start(order, keep_stderr=True) as child:
            try:
                with tarfile.open(fileobj=cast(IO[bytes], _Pipe(child.output_fd)), mode="r|") as archive:
                    archive.extractall(here, filter="data")
            except (OSError, tarfile.TarError) as error:
                raise TestbedError(f"host {self.host}: {there}: {child.stderr_lines(1) or error}") from error
            self._finish(child, order.argv, COPY_S)

    def send(self, here: Path, there: Path) -> None:
        """Copy the content of the folder `here` into a folder of that host, which is made; others cannot read it.

        Raises TestbedError when it cannot be copied.
        """
        unpack = 'umask 077 && mkdir -p "$0" && tar -C "$0" -xpf -'
        order = self._order(["sh", "-c", unpack, str(there)], gets_input=True)
        with self.connection.start(order, keep_stderr=True) as child:
            try:
                with tarfile.open(fileobj=cast(IO[bytes], _Pipe(child.input_fd)), mode="w|") as archive:
                    archive.add(here, arcname=".")
            except OSError as error:
                raise TestbedError(f"host {self.host}: {there}: {child.stderr_lines(1) or error}") from error
            self._finish(child, order.argv, COPY_S)

    def _order(self, argv: Sequence[str], *, gets_input: bool = False, linger_s: float = 0.0) -> RemoteCommand:
        is_python = argv[0] == sys.executable
        there = tuple(argv[1:] if is_python else argv)
        return RemoteCommand(
            run_id=self.run_id, argv=there, is_python=is_python, gets_input=gets_input, linger_s=linger_s
        )


class _Pipe:
    """A pipe as tarfile reads and writes it; no read or write waits for longer than `COPY_S`."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def read(self, size: int) -> bytes:
        if not select.select((self._fd,), (), (), COPY_S)[0]:
            raise TimeoutError(f"no byte came within {COPY_S:g} s")
        return os.read(self._fd, size)

    def write(self, data: bytes) -> int:
        view = memoryview(data)
        while view:
            if not select.select((), (self._fd,), (), COPY_S)[1]:
                raise TimeoutError(f"no byte was taken within {COPY_S:g} s")
            view = view[os.write(self._fd, view[: select.PIPE_BUF]) :]
        return len(data)
