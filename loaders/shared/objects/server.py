"""A MinIO server: an S3-compatible object store on one address, which ends with its parent."""

from __future__ import annotations

import http.client
import ipaddress
import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from joulefeed.child import Child
from joulefeed.closing import Closing
from loaders.errors import LoaderError
from loaders.shared.objects.keys import ObjectKeys
from loaders.shared.playbook import ask_playbook

REGION = "us-east-1"
"""The region that MinIO's requests are signed for."""
_POLL_S, _PROBE_S = 0.05, 2.0
_TRIES = 5
"""Free ports that are tried: another process can take one before the server does."""
_TAKEN, _STARTED = "port is already in use", "API: http"
"""What MinIO says."""
_LINES = 40
# Its parent's end closes the pipe to its stdin, even where the parent was killed. `$0` is the folder to remove then.
_SCRIPT = """exec 3<&0
"$@" </dev/null 3<&- >&2 & server=$!
(while read -r _; do :; done; kill $server) <&3 2>/dev/null & reader=$!
trap 'kill $server' TERM
exec 3<&-
status=1
while kill -0 $server 2>/dev/null; do wait $server; status=$?; done
kill $reader
rm -rf "$0"
exit $status"""


class ObjectServerError(LoaderError):
    """An object server cannot be found, built or started."""


def find_program() -> Path:
    """Return the path of the MinIO server, found or built by playbooks/minio.sh, which takes minutes the first time.

    Raises ObjectServerError with the end of the script's messages where that fails.
    """
    program = ask_playbook("minio")
    if program is None:
        raise ObjectServerError("playbooks/minio.sh found no MinIO and could not build one; see its messages above")
    return program


class ObjectServer(Closing):
    """A MinIO server that is ready.

    It listens on its address, and on the loopback addresses of the host or network namespace, which MinIO always adds.
    """

    def __init__(
        self,
        keys: ObjectKeys,
        host: str = "127.0.0.1",
        *,
        port: int = 0,
        folder: Path | None = None,
        program: Path | None = None,
        log: Path | None = None,
        timeout_s: float = 30.0,
    ) -> None:
        """Start it and wait until it is ready.

        Args:
            keys: the access key of its administrator; MinIO asks for 3 characters and 8 of the secret at least.
            host: numeric address to listen on (default: 127.0.0.1).
            port: port to listen on (default: any free one).
            folder: keeps its objects after the end (default: a temporary one, which is removed at the end).
            program: path of the server (default: what `find_program` returns).
            log: file that its messages are appended to (default: none).
            timeout_s: how long it may take to be ready, in s (default: 30).

        Raises ObjectServerError saying why it did not start.
        """
        self._temporary = Path(tempfile.mkdtemp(prefix="joulefeed-objects-"))
        self._folder = self._temporary / "data" if folder is None else folder.absolute()
        self._host, self._log = host, log
        self._keys = keys
        try:
            program = find_program() if program is None else program
            for last in range(_TRIES):
                self._start(program, port or _free_port(host))
                failure = self._wait(time.monotonic() + timeout_s)
                if not failure:
                    return
                self._child.stop()
                if port or _TAKEN not in failure or last == _TRIES - 1:
                    raise ObjectServerError(f"MinIO at {self.endpoint}, objects in {self._folder}: {failure}")
        except BaseException:
            self.close()
            raise

    def _start(self, program: Path, port: int) -> None:
        self.port = port
        """The port that it listens on."""
        address = f"[{self._host}]:{port}" if ":" in self._host else f"{self._host}:{port}"
        self.endpoint = f"http://{address}"
        """Its URL for clients."""
        given = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(self._temporary),
            "MINIO_ROOT_USER": self._keys.access_key,
            "MINIO_ROOT_PASSWORD": self._keys.secret_key,
            "MINIO_BROWSER": "off",
            "MINIO_UPDATE": "off",
        }
        argv = [str(program), "server", "--address", address, str(self._folder)]
        self._child = Child(
            ["sh", "-c", _SCRIPT, str(self._temporary), *argv],
            env=given,
            stdout=subprocess.DEVNULL,
            stderr=self._log,
            keep_stderr=self._log is None,
        )

    def _wait(self, deadline: float) -> str:
        """Return "" once the server takes requests, or why it does not."""
        while time.monotonic() < deadline:
            if not self._child.is_alive:
                return f"it ended: {self._words()}"
            # Until it says so itself, another server may be the one that answers.
            if _STARTED in self._child.stderr_lines(_LINES) and self._answers():
                return ""
            time.sleep(_POLL_S)
        return f"it was not ready in time: {self._words()}"

    def _words(self) -> str:
        return " ".join(self._child.stderr_lines(_LINES).split())

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection(self._host, self.port, timeout=_PROBE_S)
        try:
            connection.request("GET", "/minio/health/cluster")
            return connection.getresponse().status == http.client.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    @property
    def pid(self) -> int:
        """Leader of its process group."""
        return self._child.pid

    def failure(self) -> str | None:
        """Say how the server ended, or None while it runs."""
        if self._child.is_alive:
            return None
        return f"MinIO at {self.endpoint} is gone: it {self._child.describe_end()}"

    def close(self) -> None:
        """End it, and remove its temporary folder."""
        if hasattr(self, "_child"):
            self._child.stop()
        shutil.rmtree(self._temporary, ignore_errors=True)


def _free_port(host: str) -> int:
    family = socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as listener:
            listener.bind((host, 0))
            return int(listener.getsockname()[1])
    except OSError as error:
        raise ObjectServerError(
            f"{host} is no address of this host ({error.strerror}); name one that it has"
        ) from error
