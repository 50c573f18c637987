"""Trains of UDP packets: what share of them a link loses, and how quickly it carries them whatever it loses."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

from joulefeed.calls import Answers, CallError, SocketChannel, call

IP_UDP_BYTES: Final = 20 + 8
"""IPv4 and UDP headers (RFC 791, RFC 768)."""
FULL_PAYLOAD_BYTES: Final = 1500 - IP_UDP_BYTES
SMALL_PAYLOAD_BYTES: Final = 32
UDP_SEGMENT = 103  # linux/udp.h
SO_MEMINFO = 55  # asm-generic/socket.h
MEMINFO: Final = struct.Struct("=9I")
"""sk_meminfo (linux/sock_diag.h); the last field counts the packets that found no room in the socket's buffer."""
SEND_BUFFER_BYTES = 1 << 20
BURST_S = 0.001
BURST_MAX_PACKETS = 40
"""The kernel cuts a datagram into at most 64 packets, and takes at most 64 KiB at once."""
SAMPLE_S = 0.002
ANSWER_TIMEOUT_S = 60.0
LOSSES = 60
LOSS_MIN_PACKETS = 2_000
LOSS_MAX_S = 5.0
LOSS_PER_S = 20_000.0
"""The delay line carries about 80,000 packets a second, and trains run both ways at once."""
LOSS_RATE_SHARE = 0.3
"""Of the link's rate: no queue forms that could drop what the link does not lose."""
FULL_S = 0.6
FULL_JITTERS = 50
FULL_MIN_PACKETS = 100
STEADY: Final = (0.2, 0.9)
"""The share of a train between which its rate is taken: its start fills buckets, its end has no next packet."""


@dataclass(frozen=True, slots=True)
class Train:
    """Packets of one size that are sent one after the other."""

    packets: int
    payload_bytes: int
    per_s: float | None
    """Packets a second; None for as many as the sender's queue takes."""
    limit_s: float
    """The sender stops after this time, however many it has sent by then."""


class TrainCounter:
    """Counts the packets that reach a UDP port of `host`.

    The kernel counts: the socket's buffer has room for a few packets, and those that find none are counted as its
    drops. So no packet is missed because this process waits for a CPU.
    """

    def __init__(self, host: str) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        self._socket.bind((host, 0))
        self._socket.setblocking(False)
        self._read = 0

    @property
    def port(self) -> int:
        """The port that is counted at."""
        return int(self._socket.getsockname()[1])

    def count(self) -> int:
        """Return how many packets have come."""
        with contextlib.suppress(BlockingIOError):
            while True:
                self._socket.recv(1)
                self._read += 1
        return self._read + int(MEMINFO.unpack(self._socket.getsockopt(socket.SOL_SOCKET, SO_MEMINFO, MEMINFO.size))[8])

    def settle(self, sent: int, quiet_s: float) -> int:
        """Return how many have come once all have, or none came for `quiet_s`."""
        seen, since = self.count(), time.monotonic()
        while seen < sent and time.monotonic() - since < quiet_s:
            time.sleep(SAMPLE_S)
            if (now := self.count()) != seen:
                seen, since = now, time.monotonic()
        return seen

    def close(self) -> None:
        """Close the port."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def send_train(host: str, port: int, train: Train) -> int:
    """Send a train and return how many packets it had."""
    burst = BURST_MAX_PACKETS
    if train.per_s is not None:
        burst = max(1, min(burst, round(train.per_s * BURST_S)))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
        # A sender that does not pace itself waits here for the link's rate cap.
        out.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        out.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, train.payload_bytes)
        out.connect((host, port))
        payload = memoryview(bytes(burst * train.payload_bytes))
        sent, started = 0, time.monotonic()
        while sent < train.packets and (now := time.monotonic()) - started < train.limit_s:
            if train.per_s is not None and (early := started + sent / train.per_s - now) > 0:
                time.sleep(early)
            some = min(burst, train.packets - sent)
            with contextlib.suppress(ConnectionRefusedError):  # a counter that is gone counts nothing
                out.send(payload[: some * train.payload_bytes])
            sent += some
    return sent


def loss_train(loss_pct: float, rate_gbit: float) -> Train:
    """Return a train of small packets that distinguishes a loss from twice that loss, as far as 5 s allow.

    Of `LOSSES` losses that are expected, the interval of 99.9 % and that around twice as many do not overlap.
    """
    per_s = min(LOSS_PER_S, LOSS_RATE_SHARE * rate_gbit * 1e9 / 8 / (SMALL_PAYLOAD_BYTES + IP_UDP_BYTES))
    wanted = max(LOSS_MIN_PACKETS, LOSSES * 100 / loss_pct)
    return Train(round(min(wanted, LOSS_MAX_S * per_s)), SMALL_PAYLOAD_BYTES, per_s, 2 * LOSS_MAX_S)


def full_train(rate_gbit: float, jitter_ms: float) -> Train:
    """Return a train of full packets, as quick as the link takes them, that lasts long against the jitter."""
    seconds = max(FULL_S, FULL_JITTERS * jitter_ms / 1e3)
    packets = round(rate_gbit * 1e9 / 8 * seconds / (FULL_PAYLOAD_BYTES + IP_UDP_BYTES))
    return Train(max(FULL_MIN_PACKETS, packets), FULL_PAYLOAD_BYTES, None, 4 * seconds)


def answer_train(connection: socket.socket) -> None:
    """Send or count the trains that the other side of the connection asks for, until it closes the connection."""
    # The side that asked sees a connection that breaks, and reports it.
    with contextlib.suppress(OSError, EOFError), connection, TrainCounter(connection.getsockname()[0]) as counter:
        connection.settimeout(ANSWER_TIMEOUT_S)
        handlers: dict[str, Callable[..., int]] = {
            "send": lambda port, train: send_train(connection.getpeername()[0], port, Train(**train)),
            "port": lambda: counter.port,
            "settle": counter.settle,
        }
        answers = Answers(handlers, write=lambda line: connection.sendall(line.encode()))
        channel = SocketChannel(connection)
        while (line := channel.read_line(ANSWER_TIMEOUT_S)) is not None:
            answers.answer(line)


class TrainControl:
    """Asks the probe's server on `host` for trains; methods raise OSError where it does not answer."""

    def __init__(self, host: str, port: int, timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        self._host, self._port, self._timeout_s = host, port, timeout_s

    def lost_here(self, train: Train, quiet_s: float) -> tuple[int, int]:
        """Return (sent, lost) of a train from the other side to this one."""
        with self._connect() as connection, TrainCounter(connection.getsockname()[0]) as counter:
            sent = self._ask(connection, "send", port=counter.port, train=asdict(train))
            return sent, sent - counter.settle(sent, quiet_s)

    def lost_there(self, train: Train, quiet_s: float) -> tuple[int, int]:
        """Return (sent, lost) of a train from this side to the other one."""
        with self._connect() as connection:
            sent = send_train(self._host, self._ask(connection, "port"), train)
            return sent, sent - self._ask(connection, "settle", sent=sent, quiet_s=quiet_s)

    def arrivals(self, train: Train, quiet_s: float) -> list[tuple[int, int]]:
        """Return (monotonic ns, packets so far) every 2 ms of a train from the other side to this one."""
        samples = [(time.monotonic_ns(), 0)]
        over = threading.Event()
        with self._connect() as connection, TrainCounter(connection.getsockname()[0]) as counter:

            def sample() -> None:
                while not over.wait(SAMPLE_S):
                    samples.append((time.monotonic_ns(), counter.count()))

            sampling = threading.Thread(target=sample, name="train-arrivals")
            sampling.start()
            try:
                self._ask(connection, "send", port=counter.port, train=asdict(train))
                seen = -1
                while samples[-1][1] != seen:
                    seen = samples[-1][1]
                    time.sleep(quiet_s)
            finally:
                over.set()
                sampling.join()
        return samples

    def _connect(self) -> socket.socket:
        return socket.create_connection((self._host, self._port), timeout=self._timeout_s)

    def _ask(self, connection: socket.socket, do: str, **arguments: Any) -> int:
        try:
            return int(call(SocketChannel(connection), do, timeout_s=self._timeout_s, **arguments))
        except (CallError, EOFError) as error:
            raise ConnectionError(f"the train's server on {self._host}:{self._port} {error}") from error


def carried_gbit(arrivals: list[tuple[int, int]], packet_bytes: int) -> float | None:
    """Return the rate in Gbit/s at which the middle of a train arrived; None where too little did.

    `arrivals` are (ns, packets so far) in order, and `packet_bytes` the IP bytes of a packet.
    """
    if not arrivals or not (total := arrivals[-1][1]):
        return None
    (from_ns, first), (to_ns, last) = (next(one for one in arrivals if one[1] >= share * total) for share in STEADY)
    return (last - first) * packet_bytes * 8 / (to_ns - from_ns) if to_ns > from_ns else None
