"""An InfluxDB server of its own for a test run, stores to be sent to it, and senders in processes of their own."""

import http.client
import json
import os
import secrets
import ssl
import subprocess
import sys
import threading
from pathlib import Path

from energymon.influx.client import InfluxClient
from energymon.influx.cursor import StoreCursor
from energymon.influx.settings import InfluxSettings
from joulefeed.server import ServerProcess

REPO = Path(__file__).parents[3]
ORG = "home"


def binary() -> Path:
    """Return the server's path, found or built; what went wrong is in the exception."""
    found = subprocess.run([REPO / "playbooks" / "influxdb.sh"], capture_output=True, text=True, check=False)
    if found.returncode:
        raise RuntimeError(f"playbooks/influxdb.sh found no server and could not build one:\n{found.stderr[-4000:]}")
    return Path(found.stdout.strip())


class _Influxd(ServerProcess):
    """One life of a server."""

    _name = "InfluxDB"
    _error = RuntimeError
    _taken_words = ("address already in use",)

    def __init__(self, server: "Server", port: int) -> None:
        self._server = server
        super().__init__(server.address, port=port, log=server.folder / "log", end_s=60.0, timeout_s=60.0)

    def _command(self) -> list[str]:
        self._server.port = self.port
        return self._server.command()

    def _is_ready(self) -> bool:
        try:
            return self._server.call("GET", "/health", authorised=False)["status"] == "pass"
        except (OSError, http.client.HTTPException, ValueError, RuntimeError):
            return False


class Server:
    """influxd with a token, on loopback by default; it can be stopped, killed and started again on what it had."""

    def __init__(
        self,
        program: Path,
        folder: Path,
        certificate: Path | None = None,
        key: Path | None = None,
        *,
        address: str = "127.0.0.1",
    ) -> None:
        self._program, self.folder, self.certificate, self._key, self.address = (
            program,
            folder,
            certificate,
            key,
            address,
        )
        self.port = 0
        self.token = secrets.token_urlsafe(24)
        self._process: _Influxd | None = None
        self._buckets = 0
        self.start()
        setup = {"username": "root", "password": secrets.token_urlsafe(12), "org": ORG, "bucket": "first"}
        answer = self.call("POST", "/api/v2/setup", {**setup, "token": self.token}, authorised=False)
        self.org_id = answer["org"]["id"]

    @property
    def url(self) -> str:
        """Of the port that it has now."""
        return f"https://localhost:{self.port}" if self.certificate else f"http://{self.address}:{self.port}"

    def command(self) -> list[str]:
        """Return the command line of a server at its port."""
        return [
            str(self._program),
            "run",
            f"--bolt-path={self.folder}/bolt",
            f"--sqlite-path={self.folder}/sqlite",
            f"--engine-path={self.folder}/engine",
            f"--http-bind-address={self.address}:{self.port}",
            "--reporting-disabled",
            "--log-level=error",
            *([f"--tls-cert={self.certificate}", f"--tls-key={self._key}"] if self.certificate else []),
        ]

    def start(self) -> None:
        """Start it and wait until it answers, unless it runs."""
        if self._process is None:
            self.folder.mkdir(exist_ok=True)
            self._process = _Influxd(self, self.port)

    def stop(self, *, end_s: float | None = None) -> None:
        """End it in order, or within so many seconds."""
        if self._process is not None:
            self._process.stop(end_s=end_s)
            self._process.close()
            self._process = None

    def kill(self) -> None:
        """End it at once."""
        self.stop(end_s=0.0)

    def call(self, method: str, path: str, body: object = None, *, authorised: bool = True) -> dict:
        """Ask the server's own API."""
        host = self.url.partition("//")[2]
        if self.certificate:
            trust = ssl.create_default_context(cafile=str(self.certificate))
            connection = http.client.HTTPSConnection(host, timeout=10, context=trust)
        else:
            connection = http.client.HTTPConnection(host, timeout=10)
        headers = {"Authorization": f"Token {self.token}"} if authorised else {}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        told = answer.read()
        connection.close()
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path}: {answer.status} {told[:300]!r}")
        return json.loads(told) if told else {}

    def bucket(self, name: str | None = None, seconds: int = 0) -> str:
        """Make a bucket that keeps points for `seconds`, or for ever; return its name."""
        self._buckets += 1
        name = name or f"bucket-{self._buckets}"
        rules = [{"type": "expire", "everySeconds": seconds}] if seconds else []
        self.call("POST", "/api/v2/buckets", {"orgID": self.org_id, "name": name, "retentionRules": rules})
        return name

    def environment(self, bucket: str, **more: str) -> dict[str, str]:
        """Return the variables that lead to a bucket."""
        return {
            "INFLUXDB_V2_URL": self.url,
            "INFLUXDB_V2_ORG": ORG,
            "INFLUXDB_V2_BUCKET": bucket,
            "INFLUXDB_V2_TOKEN": self.token,
            **more,
        }

    def settings(self, bucket: str) -> InfluxSettings:
        """Return the same as settings."""
        return InfluxSettings.from_environment(self.environment(bucket))


def drain(path: Path, settings: InfluxSettings) -> None:
    """Send all that a server does not have of a store yet."""
    with StoreCursor(path) as cursor, InfluxClient(settings) as uplink:
        while (batch := cursor.next_batch()) is not None:
            uplink.post(batch.lines)
            cursor.acknowledge(batch)


class SenderProcess:
    """A sender, and the states that it tells."""

    def __init__(self, store: Path, environment: dict[str, str], *options: str) -> None:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("INFLUXDB_V2_")}
        self.argv = [sys.executable, "-m", "energymon", "send", "--store", str(store), *options]
        self.process = subprocess.Popen(
            self.argv,
            cwd=REPO,
            env={**clean, **environment, "PYTHONPATH": str(REPO)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.told: list[dict] = []
        self.output = b""
        self.peak_kb = 0
        self._news = threading.Condition()
        self._ended = False
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        for line in self.process.stdout:
            with self._news:
                self.output += line
                self.told.append(json.loads(line))
                self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()

    def wait_for(self, state: str, words: str = "", timeout_s: float = 60) -> dict:
        """Return the first state of this name, or of any, whose message has these words."""

        def match() -> dict | None:
            told = (t for t in self.told if not state or t["state"] == state)
            return next((t for t in told if words in t["message"]), None)

        with self._news:
            self._news.wait_for(lambda: match() or self._ended, timeout_s)
            assert match(), f"never told {state} {words!r}: {self.told}"
            return match()

    def peak(self) -> int:
        """Return the most memory that it has had so far, kB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0])

    def end(self, *, close: bool = True, timeout_s: float = 60) -> int:
        """Close its stdin, as the end of an agent does, and return its exit status."""
        if close and not self.process.stdin.closed:
            self.process.stdin.close()
        status = self.process.wait(timeout_s)
        self._reader.join()
        self.output += self.process.stderr.read()
        return status

    def kill(self) -> None:
        """End it at once, unless it has ended."""
        self.process.kill()
        self.process.wait()
        self._reader.join()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            pipe.close()
