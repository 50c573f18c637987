"""A client of benchmarks/streaming.py that costs next to nothing: it drops answers in the kernel, without a copy.

Its sockets speak ZeroMQ's protocol themselves (ZMTP 3.0, https://rfc.zeromq.org/spec/23), request all batches at once,
and receive with MSG_TRUNC (tcp(7)).
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from bench import cpu_s
from streaming_rig import Daemon, Shards

from harness.errors import TestbedError
from loaders.records.planner import plan_epoch
from loaders.streaming.protocol import Get, pack
from loaders.streaming.receiver.connections import DaemonConnections
from loaders.streaming.settings import StreamSettings

_GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
_READY = b"\x05READY\x0bSocket-Type" + (6).to_bytes(4, "big") + b"DEALER"
_COMMAND, _LONG = 4, 2
_PIECE_BYTES = 2**20
"""For which the sink is woken."""
_OMIT_S, _SILENCE_S = 0.5, 10.0
_MOST_BYTES_S = 8e9
"""Bytes a second for which there are enough requests."""


def _frame(body: bytes, flags: int = 0) -> bytes:
    if len(body) < 256:
        return bytes([flags, len(body)]) + body
    return bytes([flags | _LONG]) + len(body).to_bytes(8, "big") + body


def _connect(endpoint: str) -> socket.socket:
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=_SILENCE_S)
    connection.sendall(_GREETING)
    _read(connection, len(_GREETING))
    connection.sendall(_frame(_READY, _COMMAND))
    _, length = _read(connection, 2)
    _read(connection, length)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, _PIECE_BYTES)
    return connection


def _read(connection: socket.socket, nbytes: int) -> bytes:
    data = b""
    while len(data) < nbytes:
        piece = connection.recv(nbytes - len(data))
        if not piece:
            raise TestbedError("the daemon closed a sink's connection while it was made")
        data += piece
    return data


@contextlib.contextmanager
def on_processors(count: int, pid: int) -> Iterator[None]:
    """Keep a process, with the threads that it has and will have, and this one on so many processors together."""
    own = os.sched_getaffinity(0)
    few = sorted(own)[:count]
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), few)
    os.sched_setaffinity(0, few)
    try:
        yield
    finally:
        os.sched_setaffinity(0, own)


def drain(daemon: Daemon, shards: Shards, *, streams: int, batch_size: int, seconds: float) -> tuple[float, float]:
    """Take EMLIO's batches over so many connections; return GB/s, and the processors that the daemon kept busy.

    Raises TestbedError when the daemon falls silent.
    """
    with DaemonConnections(StreamSettings(batch_size=1, seed=0, endpoint=daemon.endpoint, warm_bytes=0)) as known:
        catalog = known.shards.catalog
    plans = list(plan_epoch(catalog.shard_records, epoch=0, batch_size=batch_size, seed=0, slice_records=0))
    requests = round(_MOST_BYTES_S * (_OMIT_S + seconds) / (shards.sample_bytes * batch_size * streams))
    with contextlib.ExitStack() as stack:
        sinks = [stack.enter_context(_connect(daemon.endpoint)) for _ in range(streams)]
        for first, sink in enumerate(sinks):
            slices = [plans[(first + number * streams) % len(plans)].slices for number in range(requests)]
            gets = [Get(number, catalog.fingerprint, 0, number, each, "msgpack") for number, each in enumerate(slices)]
            sink.sendall(b"".join(_frame(pack(get)) for get in gets))
        _drop(sinks, _OMIT_S)
        busy, began = cpu_s([daemon.pid]), time.perf_counter()
        nbytes = _drop(sinks, seconds)
        took = time.perf_counter() - began
        return nbytes / took * 1e-9, (cpu_s([daemon.pid]) - busy) / took


def _drop(sinks: list[socket.socket], seconds: float) -> int:
    """Receive for so long and keep nothing; return the number of bytes."""
    poll = select.poll()
    for sink in sinks:
        poll.register(sink, select.POLLIN)
    by_descriptor = {sink.fileno(): sink for sink in sinks}
    nothing, nbytes, end = bytearray(8 * _PIECE_BYTES), 0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        ready = poll.poll(1000 * _SILENCE_S)
        if not ready:
            raise TestbedError(f"the daemon sent nothing for {_SILENCE_S:g} s")
        for each, _ in ready:
            received = by_descriptor[each].recv_into(nothing, 0, socket.MSG_TRUNC)
            if not received:
                raise TestbedError("the daemon ended a connection while it was measured")
            nbytes += received
    return nbytes
