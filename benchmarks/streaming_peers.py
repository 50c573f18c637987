"""Peers that load a streaming daemon, in a process of their own: many connections that idle or ask, or one that fuzzes.

What benchmarks/streaming_floods.py starts.

Speaks ZMTP 3.1 by hand, so that thousands of connections cost little. Runs until standard input ends, then prints
one JSON object: `Load`.
"""

from __future__ import annotations

import json
import os
import resource
import selectors
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from random import Random

from loaders.records.planner import Slice
from loaders.streaming.protocol import MAX_REQUEST_BYTES, MAX_SLICES, Get, pack

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32)
READY = b"\x04\x1c\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"
CONNECTS_AT_ONCE = 64
STARVED_S = 2.0
MORE, LONG, COMMAND = 1, 2, 4


@dataclass(frozen=True, slots=True)
class Load:
    """What the peers did."""

    seconds: float
    """Since all had been connected once, or tried to."""
    answers: int
    starved: int
    """Connections that waited for an answer for the last STARVED_S seconds, or for a connection."""
    connects: int
    """Connections made, those made again included."""


def message(body: bytes) -> bytes:
    """Return a message of one frame."""
    return (b"\0" + bytes([len(body)]) if len(body) < 256 else b"\x02" + struct.pack(">Q", len(body))) + body


@dataclass(slots=True)
class Peer:
    """One connection."""

    socket: socket.socket
    request: bytes
    """Sent once connected, and again after every answer; empty for a peer that is silent."""
    last: float
    """When an answer came last."""
    data: bytearray = field(default_factory=bytearray)
    skip: int = 0
    more: bool = False
    greeted: bool = False

    def received(self, data: bytes) -> int:
        """Take bytes; return how many answers were complete with them."""
        answers = 0
        self.data += data
        if not self.greeted:
            if len(self.data) < 64:
                return 0
            del self.data[:64]
            self.greeted = True
        while True:
            step = min(self.skip, len(self.data))
            del self.data[:step]
            self.skip -= step
            if self.skip or len(self.data) < 2:
                return answers
            flags, head = self.data[0], 9 if self.data[0] & LONG else 2
            if len(self.data) < head:
                return answers
            self.skip = struct.unpack_from(">Q", self.data, 1)[0] if flags & LONG else self.data[1]
            del self.data[:head]
            answers += not flags & (MORE | COMMAND)


def run(address: tuple[str, int], count: int, request: bytes) -> Load:
    """Keep `count` connections until standard input ends; silent ones send nothing, not even a greeting."""
    selector = selectors.DefaultSelector()
    selector.register(sys.stdin, selectors.EVENT_READ)
    wanted, connects, answers, peers = count, 0, 0, dict[int, Peer]()
    began, full, first = time.monotonic(), False, 0

    def drop(peer: Peer) -> None:
        nonlocal wanted
        selector.unregister(peer.socket)
        del peers[peer.socket.fileno()]
        peer.socket.close()
        wanted += 1

    while True:
        for _ in range(min(wanted, CONNECTS_AT_ONCE)):
            one = socket.socket()
            one.setblocking(False)
            one.connect_ex(address)
            peers[one.fileno()] = peer = Peer(one, request, time.monotonic())
            selector.register(one, selectors.EVENT_WRITE, peer)
            wanted -= 1
            connects += 1
        if not full and not wanted:
            full, began, first = True, time.monotonic(), answers
        for key, events in selector.select(0.0 if wanted else 0.2):
            if key.data is None:
                if not os.read(0, 100):
                    now = time.monotonic()
                    starved = sum(now - peer.last > STARVED_S for peer in peers.values()) if request else 0
                    return Load(now - began, answers - first, starved + wanted, connects)
                continue
            peer = key.data
            got = moved(selector, peer, events)
            if got is None:
                drop(peer)
            else:
                answers += got


def moved(selector: selectors.BaseSelector, peer: Peer, events: int) -> int | None:
    """Send and receive what can be; return how many answers came, None where the connection has ended."""
    try:
        if events & selectors.EVENT_WRITE:
            if peer.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                return None
            selector.modify(peer.socket, selectors.EVENT_READ, peer)
            if peer.request:
                peer.socket.sendall(GREETING)
            return 0
        data, greeted = peer.socket.recv(65536), peer.greeted
        if not data:
            return None
        got = peer.received(data)
        if peer.greeted and not greeted:
            peer.socket.sendall(READY + peer.request)
        if got:
            peer.last = time.monotonic()
            peer.socket.sendall(peer.request * got)
    except OSError:
        return None
    return got


def fuzz(address: tuple[str, int], frames: Iterator[bytes]) -> Load:
    """Send messages as quickly as one connection takes them, and connect again where it is closed."""
    began, connects, sent = time.monotonic(), 0, 0
    selector = selectors.DefaultSelector()
    selector.register(sys.stdin, selectors.EVENT_READ)
    while True:
        try:
            with socket.create_connection(address, timeout=1) as peer:
                connects += 1
                peer.sendall(GREETING)
                peer.recv(64, socket.MSG_WAITALL)
                peer.sendall(READY)
                while not selector.select(0):
                    peer.sendall(next(frames))
                    sent += 1
                return Load(time.monotonic() - began, sent, 0, connects)
        except OSError:
            if selector.select(0):
                return Load(time.monotonic() - began, sent, 0, connects)


def small() -> Iterator[bytes]:
    """Yield messages of one byte."""
    block = message(b"a") * 10_000
    while True:
        yield block


def slices(fingerprint: str) -> Iterator[bytes]:
    """Yield requests as long as one may be, for records that there are."""
    request = message(pack(Get(1, fingerprint, 0, 0, tuple(Slice(0, index % 2, 1) for index in range(MAX_SLICES)))))
    while True:
        yield request


def nested() -> Iterator[bytes]:
    """Yield messages that are costly to unpack and no requests, as long as one may be."""
    block = message(b"\x9f" + b"\x90" * (MAX_REQUEST_BYTES - 1))
    while True:
        yield block


def rubbish() -> Iterator[bytes]:
    """Yield random messages of random lengths."""
    random = Random(1)
    blocks = [b"".join(message(random.randbytes(random.choice((0, 1, 30, 3000, 60_000)))) for _ in range(50))]
    while True:
        yield from blocks


def main() -> None:
    """Load the daemon at a port with so many connections, as the command line's JSON object says."""
    orders = json.loads(sys.argv[1])
    mode, count, fingerprint = orders["mode"], orders["count"], orders["fingerprint"]
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    address = ("127.0.0.1", orders["port"])
    ask = message(pack(Get(1, fingerprint, 0, 0, (Slice(0, 0, 1),))))
    loads: dict[str, Callable[[], Load]] = {
        "idle": lambda: run(address, count, b""),
        "busy": lambda: run(address, count, ask),
        "small": lambda: fuzz(address, small()),
        "slices": lambda: fuzz(address, slices(fingerprint)),
        "nested": lambda: fuzz(address, nested()),
        "rubbish": lambda: fuzz(address, rubbish()),
    }
    print(json.dumps(asdict(loads[mode]())))


if __name__ == "__main__":
    main()
