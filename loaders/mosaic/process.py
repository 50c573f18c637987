"""The loader's end of the process that runs MosaicML Streaming: it is started, spoken to, limited and ended."""

from __future__ import annotations

import json
import mmap
import os
import select
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import loaders
from joulefeed.child import Child
from loaders.errors import LoaderConfigError, NoAnswerError, StreamError, WorkerError
from loaders.mosaic.keys import ObjectKeys
from loaders.mosaic.options import Remote
from loaders.shared.compat import check_socket_paths

PACKET_BYTES: Final = 65_536
MORE: Final = b"+"
"""A packet that asks for one batch more."""
NAMES: Final = "joulefeed-mosaic-"
"""How the names of a reader's shared memory begin, before the id of its process, and of its folder."""
_RANKS: Final = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_AUTHORITIES: Final = "AWS_CA_BUNDLE"
"""Variable with the file of the authorities that a server's certificate is checked with."""
_ADVICE: Final = {
    "denied": "its access key is another one: give the client's half of the daemon's keys",
    "damaged": "prepare the data again",
    "network": "see whether the daemon runs and the host can be reached",
}
_END_S: Final = 5.0
_START_S: Final = 120.0
"""For torch, on a busy machine."""


class ReaderProcess:
    """A `python -m loaders.mosaic.reader`, with a folder for what it downloads."""

    def __init__(
        self, python: str, remote: Remote, keys: ObjectKeys, settings: Mapping[str, Any], timeout_s: float
    ) -> None:
        """Start it and wait until it has read the index.

        Raises StreamError naming the server where that cannot be reached or refuses, LoaderConfigError for settings
        that the library refuses, for a folder for temporary files whose name is too long, and for a `python` that
        cannot be started.
        """
        self._remote, self._timeout_s = remote, timeout_s
        check_socket_paths(f"{NAMES}12345678")
        self._folder = Path(tempfile.mkdtemp(prefix=NAMES))
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._closed = False
        self._poller = select.poll()
        self._poller.register(self._channel, select.POLLIN)
        try:
            with theirs:
                self._child = self._start(python, keys, theirs)
            local = self._folder / "shards"
            given = {**settings, "remote": remote.url, "local": str(local), "folder": str(self._folder)}
            self._send(json.dumps(given).encode())
            self.version = self._answer(_START_S, None)["imported"]
            """Of MosaicML Streaming."""
            self.found = self._answer(timeout_s, "its index")
            """What the reader has found: `samples`, `shards`, and `block`, the samples that it shuffles at a time."""
        except BaseException:
            self.close()
            raise

    def _start(self, python: str, keys: ObjectKeys, theirs: socket.socket) -> Child:
        try:
            return Child(
                [python, "-m", "loaders.mosaic.reader", str(theirs.fileno())],
                env=self._environment(keys),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                keep_stderr=True,
                pass_fds=[theirs.fileno()],
            )
        except OSError as error:
            raise LoaderConfigError(
                f"python={python}: {error.strerror}: expected a Python that has mosaicml-streaming, which "
                "playbooks/mosaic.sh prints"
            ) from error

    def _environment(self, keys: ObjectKeys) -> dict[str, str]:
        """Return the variables of the process; the keys are in no other process's, and on no command line."""
        base = {
            name: value
            for name, value in os.environ.items()
            if name not in _RANKS and (name == _AUTHORITIES or not name.startswith("AWS_"))
        }
        code = str(Path(loaders.__file__).parents[1])
        base |= {
            "PYTHONPATH": os.pathsep.join([code, *filter(None, [base.get("PYTHONPATH")])]),
            "TMPDIR": str(self._folder),
            "S3_ENDPOINT_URL": self._remote.endpoint,
            "AWS_ACCESS_KEY_ID": keys.access_key,
            "AWS_SECRET_ACCESS_KEY": keys.secret_key,
            "AWS_DEFAULT_REGION": self._remote.region,
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        return base | ({} if keys.session_token is None else {"AWS_SESSION_TOKEN": keys.session_token})

    def start_epoch(self, epoch: int, ahead: int) -> None:
        """Start an epoch and ask for so many batches of it."""
        self._send(json.dumps({"epoch": epoch}).encode())
        for _ in range(ahead):
            self.ask()

    def ask(self) -> None:
        """Ask for one batch more."""
        self._send(MORE)

    def receive(self, wait: bool) -> memoryview | None:
        """Return the next batch; None where `wait` is false and none has arrived.

        Raises StopIteration at the end of the epoch, StreamError naming the shard that cannot be had, NoAnswerError
        naming the server that is silent, WorkerError where the process has died.
        """
        message, descriptors = self._receive(self._timeout_s if wait else 0.0)
        if message is None:
            if wait:
                raise NoAnswerError(self._silent("a batch", self._timeout_s))
            return None
        answer = self._checked(message)
        if "end" in answer:
            raise StopIteration
        try:
            return memoryview(mmap.mmap(descriptors[0], answer["bytes"]))
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _answer(self, timeout_s: float, what: str | None) -> dict[str, Any]:
        message, _ = self._receive(timeout_s)
        if message is None and what is None:
            raise WorkerError(f"{self._process()} is not up after {timeout_s:g} s: the machine is too busy")
        if message is None:
            raise NoAnswerError(self._silent(str(what), timeout_s))
        return self._checked(message)

    def _receive(self, timeout_s: float) -> tuple[bytes | None, list[int]]:
        if not self._poller.poll(1e3 * timeout_s):
            return None, []
        try:
            message, descriptors, _, _ = socket.recv_fds(self._channel, PACKET_BYTES, 1)
        except OSError:
            message, descriptors = b"", []
        if self._closed:
            for descriptor in descriptors:
                os.close(descriptor)
            raise StopIteration
        return message, list(descriptors)

    def _checked(self, message: bytes) -> dict[str, Any]:
        if not message:
            raise WorkerError(f"{self._process()} {self._child.describe_end(_END_S)}")
        answer: dict[str, Any] = json.loads(message)
        if "error" not in answer:
            return answer
        if answer["kind"] == "config":
            raise LoaderConfigError(answer["error"])
        if answer["kind"] == "worker":
            raise WorkerError(f"a worker of {self._process()}: {answer['error']}")
        raise StreamError(f"{self._where()}: {answer['error']}; {_ADVICE[answer['kind']]}")

    def _process(self) -> str:
        return f"the process {self._child.pid} that reads {self._remote.url}"

    def _where(self) -> str:
        host, port = self._remote.address
        return f"object store {host}:{port}"

    def _silent(self, what: str, timeout_s: float) -> str:
        return (
            f"{self._where()}: {self._remote.url}: {what} has not come within {timeout_s:g} s; see whether the daemon "
            "runs and the host can be reached, or raise timeout_s"
        )

    def _send(self, message: bytes) -> None:
        # Why it has ended is in what it sent, which is received next.
        with suppress(OSError):
            self._channel.send(message)

    def interrupt(self) -> None:
        """End a `receive` that another thread is in."""
        self._closed = True
        with suppress(OSError):
            self._channel.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the process, its workers, and all that it has made; may be called twice."""
        self.interrupt()
        if hasattr(self, "_child"):
            deadline = time.monotonic() + _END_S
            while self._child.is_alive and time.monotonic() < deadline:
                time.sleep(0.005)
            self._child.stop(term_s=1.0)
            remove_traces(self._child.pid, self._folder)
        remove_traces(None, self._folder)


def remove_traces(pid: int | None, folder: Path) -> None:
    """Remove the shared memory of a reader whose process has ended, and its folder."""
    for path in () if pid is None else Path("/dev/shm").glob(f"{NAMES}{pid}-*"):  # noqa: S108
        path.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
