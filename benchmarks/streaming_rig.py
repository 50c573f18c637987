"""What benchmarks/streaming.py measures with: namespaces, links, shards, daemons, receivers and iperf3."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from bench import HERE, PYTHONPATH, namespaces
from PIL import Image
from streaming_receiver import Orders, Received

from harness.config.regime import Regime
from harness.errors import TestbedError
from harness.testbed.link import COMPUTE_ADDRESS, STORAGE_ADDRESS, Link, LinkKind, open_link
from harness.testbed.link.namespace import run_in
from harness.testbed.link.tcp import tune_tcp
from loaders.base import Samples
from loaders.records.shards.convert import convert
from loaders.records.shards.index import ShardSet, index_path, save_manifest

LOOPBACK = "127.0.0.1"
IPERF_PORT = 5201
PATIENCE_S = 180.0
SHARDS = 24
RECORD_BYTES = 256
"""What a record has beside its image, at most."""
NICE = -10
"""Without the right to it, `nice` says so and goes on."""


@dataclass(frozen=True, slots=True)
class Shards:
    """A shard folder in the page cache."""

    root: Path
    sample_bytes: int
    nbytes: int


def make_jpeg(nbytes: int) -> bytes:
    """Return a JPEG of about so many bytes; it is noise, so its side is small and its bytes are slow to decode."""
    side = round((nbytes / 1.2) ** 0.5)
    buffer = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (side, side, 3), np.uint8)).save(
        buffer, "JPEG", quality=95
    )
    return buffer.getvalue()


def make_shards(
    folder: Path, sample_bytes: int, total_bytes: int, shards: int = SHARDS, image: bytes | None = None
) -> Shards:
    """Write so many shards of so many bytes in all; every sample's image is the same file, its record is not.

    The image is noise, or the given one.
    """
    count = max(1, total_bytes // sample_bytes)
    tree = folder / f"tree-{sample_bytes}{'' if image is None else '-image'}"
    tree.mkdir(parents=True, exist_ok=True)
    image = np.random.default_rng(0).bytes(sample_bytes) if image is None else image
    sample_bytes = len(image)
    (tree / "image.bin").write_bytes(image)
    samples = Samples(tree, ("image.bin",) * count, np.zeros(count, np.int64), np.full(count, sample_bytes))
    # As many shards as two and three daemons can share evenly.
    shard_bytes = -(-count // shards) * (sample_bytes + RECORD_BYTES)
    out = folder / f"shards-{tree.name}-{count}"
    root = convert(samples, out, key=f"{tree.name}x{count}", shard_bytes=shard_bytes)
    for shard in root.glob("*.tfrecord"):
        shard.read_bytes()
    return Shards(root, sample_bytes, count * sample_bytes)


def split(shards: Shards, parts: int) -> list[Shards]:
    """Return folders that have the shards in equal parts, as hard links."""
    whole = ShardSet.open(shards.root).shards
    folders = []
    for index in range(parts):
        mine = whole[index::parts]
        folder = shards.root.with_name(f"{shards.root.name}-{index}-of-{parts}")
        if not folder.is_dir():
            folder.mkdir()
            for path in (path for each in mine for path in (each.path, index_path(each.path))):
                (folder / path.name).hardlink_to(path)
            save_manifest(folder, key=folder.name, seed=0, shards=[folder / each.path.name for each in mine])
        folders.append(Shards(folder, shards.sample_bytes, sum(each.nbytes for each in mine)))
    return folders


@dataclass(frozen=True, slots=True)
class Place:
    """Where processes run: a network namespace, or the machine's own."""

    address: str = LOOPBACK
    namespace: str | None = None

    def popen(self, argv: Sequence[str], **options: Any) -> subprocess.Popen[str]:
        """Start a process here; measured processes get a higher priority than others."""
        enter = ["nice", "-n", str(NICE), *(["nsenter", f"--net={self.namespace}", "--"] if self.namespace else [])]
        environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
        return subprocess.Popen([*enter, *argv], text=True, env=environment, **options)


@dataclass(frozen=True, slots=True)
class Keys:
    """Where the halves of a key lie."""

    daemon: Path
    client: Path


@dataclass(frozen=True, slots=True)
class Daemon:
    """A daemon that serves."""

    endpoint: str
    pid: int
    keys: Path | None
    """The key with which a client is let in."""


@dataclass(frozen=True, slots=True)
class Iperf:
    """What iperf3 reached."""

    gbit: float
    cpu_s_per_gb: float
    """CPU seconds of server and client."""


@dataclass(frozen=True, slots=True)
class Rig:
    """A storage and a compute side; `link` is None on plain loopback."""

    storage: Place
    compute: Place
    link: Link | None = None

    def set(self, rtt_ms: float, rate_gbit: float, loss_pct: float = 0.0) -> None:
        """Give the link a round trip, a cap, and a share of packets that are lost."""
        assert self.link is not None
        self.link.set(Regime(name=f"rtt_{rtt_ms:g}ms", rtt_ms=rtt_ms, rate_gbit=rate_gbit, loss_pct=loss_pct))

    @contextlib.contextmanager
    def daemon(self, shards: Shards, *options: str, keys: Keys | None = None) -> Iterator[Daemon]:
        """Serve the shards on the storage side: encrypted to clients that have the key, or to anyone.

        The namespace's congestion control is that of the peers too, so it is kept unless the options choose another.
        Raises TestbedError when it ends early.
        """
        serve = [sys.executable, "-m", "loaders.streaming", "serve", "--until-eof", "--root", str(shards.root)]
        locked = ["--keys", str(keys.daemon)] if keys else ["--no-auth"]
        control = [] if "--congestion" in options else ["--congestion", "kernel"]
        argv = [*serve, "--listen", f"{self.storage.address}:0", *locked, *control, *options]
        process = self.storage.popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise TestbedError(f"the daemon ended: {' '.join(argv)}")
            ready = json.loads(line)
            yield Daemon(ready["endpoint"], ready["pid"], keys.client if keys else None)
        finally:
            process.kill()
            process.wait()

    def receive(self, daemons: Sequence[Daemon], **orders: Any) -> Received:
        """Receive on the compute side; raise TestbedError when the receiver fails."""
        keys = daemons[0].keys
        wanted = Orders(
            [each.endpoint for each in daemons],
            pids=[each.pid for each in daemons],
            keys=str(keys) if keys else None,
            **orders,
        )
        argv = [sys.executable, "-P", str(HERE / "streaming_receiver.py")]
        process = self.compute.popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            said, _ = process.communicate(json.dumps(asdict(wanted)), timeout=PATIENCE_S)
        finally:
            process.kill()
            process.wait()
        if process.returncode:
            raise TestbedError(f"the receiver ended with status {process.returncode}")
        return Received(**json.loads(said))

    def iperf(self, *, flows: int, seconds: float, omit_s: float = 0.0, congestion: str | None = None) -> Iperf:
        """Send from storage to compute as iperf3 does; by the namespace's congestion control if none is named."""
        return _iperf_ended(*self._start_iperf(flows, seconds, omit_s, congestion))

    @staticmethod
    def iperf_together(rigs: Sequence[Rig], *, flows: int, seconds: float, omit_s: float = 0.0) -> float:
        """Send over several links at a time; return the sum in Gbit/s."""
        started = [rig._start_iperf(flows, seconds, omit_s) for rig in rigs]
        return sum(_iperf_ended(*pair).gbit for pair in started)

    def _start_iperf(
        self, flows: int, seconds: float, omit_s: float, congestion: str | None = None
    ) -> tuple[subprocess.Popen[str], subprocess.Popen[str]]:
        where = ["-p", str(IPERF_PORT)]
        server = self.compute.popen(
            ["iperf3", "-s", "-1", "-B", self.compute.address, *where],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        time.sleep(0.3)
        shape = ["-P", str(flows), "-t", f"{seconds:.0f}", *(["-O", f"{omit_s:.0f}"] if omit_s else [])]
        shape += ["-C", congestion] if congestion else []
        client = ["iperf3", "-c", self.compute.address, *where, "--json", *shape]
        return server, self.storage.popen(client, stdout=subprocess.PIPE)


def _iperf_ended(server: subprocess.Popen[str], client: subprocess.Popen[str]) -> Iperf:
    try:
        said, client_cpu_s = _ended(client)
        report = json.loads(said)
        if "error" in report:
            raise TestbedError(f"iperf3: {report['error']}")
        _, server_cpu_s = _ended(server)
    finally:
        for process in (server, client):
            if process.returncode is None:
                process.kill()
                process.wait()
    gigabytes = sum(each["sum"]["bytes"] for each in report["intervals"]) * 1e-9
    gbit = report["end"]["sum_received"]["bits_per_second"] * 1e-9
    return Iperf(gbit, (client_cpu_s + server_cpu_s) / gigabytes)


def _ended(process: subprocess.Popen[str]) -> tuple[str, float]:
    """Return what a process of one thread wrote, and its CPU seconds."""
    said = process.stdout.read() if process.stdout else ""
    # The dead process' record is read before it is buried. A sibling's death is not awaited.
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    used_ns = int(Path(f"/proc/{process.pid}/schedstat").read_text().split()[0])
    process.wait()
    return said, used_ns * 1e-9


@contextlib.contextmanager
def open_rig(kind: LinkKind) -> Iterator[Rig]:
    """Open two namespaces with a link between them."""
    with namespaces("storage", "compute") as (storage, compute), open_link(storage, compute, kind=kind) as link:
        yield Rig(Place(STORAGE_ADDRESS, storage), Place(COMPUTE_ADDRESS, compute), link)


@contextlib.contextmanager
def open_star(count: int, *, rate_gbit: float) -> Iterator[list[Rig]]:
    """Open a compute namespace with a capped link of its own to each of `count` storage namespaces."""
    with namespaces("compute", *(f"storage{index}" for index in range(count))) as (compute, *storages):
        rigs = []
        for index, storage in enumerate(storages):
            near, far, interface = f"10.78.{index}.2", f"10.78.{index}.1", f"jf{index}"
            peer = ["peer", "name", interface, "netns", Path(storage).name]
            run_in(compute, ["ip", "link", "add", interface, "type", "veth", *peer])
            for namespace, address in ((compute, near), (storage, far)):
                tune_tcp(namespace)
                run_in(namespace, ["ip", "address", "add", f"{address}/30", "dev", interface])
                run_in(namespace, ["ip", "link", "set", interface, "up"])
                shape = ["rate", f"{round(rate_gbit * 1e9)}bit", "burst", "256kb", "limit", "1gb"]
                run_in(namespace, ["tc", "qdisc", "add", "dev", interface, "root", "tbf", *shape])
            rigs.append(Rig(Place(far, storage), Place(near, compute)))
        yield rigs


LOCAL = Rig(Place(), Place())
signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
