"""The routes of a link: each TCP connection stays on one of several delay lines, which differ in delay, rate and loss.

Connections take the paths in turn, in the order in which their first packets come. A hash of the ports, as routers use,
would depend on ports that the kernel draws: of four connections all may meet the slow path in one run and none in the
next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from harness.testbed.link.userspace.delay_line import DelayLine, Impairment
from harness.testbed.link.userspace.tun import VNET_HEADER_BYTES

IPV4_WITHOUT_OPTIONS: Final = 0x45
TCP: Final = 6
PROTOCOL: Final = VNET_HEADER_BYTES + 9
ENDS: Final = slice(VNET_HEADER_BYTES + 12, VNET_HEADER_BYTES + 24)
"""Where a packet has its addresses and, after a header without options, its ports (RFC 791, RFC 9293)."""
_IP_BYTES: Final = 20
_TCP_HEADER: Final = VNET_HEADER_BYTES + _IP_BYTES
_FLAGS: Final = _TCP_HEADER + 13
_SYN: Final = 0x02


@dataclass(frozen=True, slots=True)
class PathCounters:
    """What one path has done, both directions together: since the link was set to its regime, or in an epoch."""

    connections: int
    """TCP connections that sent a packet since the counters were last read."""
    packets: int
    bytes: int
    """Bytes of the packets that were carried, IP headers included."""
    lost: int
    """Packets that the path loses at random."""
    drops: int
    """Packets that found no room in the path's queue: its rate is below that of its senders."""

    def since(self, before: PathCounters) -> PathCounters:
        """Return the part that was added after the counters were read before."""
        return PathCounters(
            connections=self.connections,
            packets=self.packets - before.packets,
            bytes=self.bytes - before.bytes,
            lost=self.lost - before.lost,
            drops=self.drops - before.drops,
        )


@dataclass(slots=True)
class _TcpFlow:
    path: int
    lines: tuple[DelayLine, DelayLine]
    is_active: bool = True


@dataclass(slots=True)
class Paths:
    """The delay lines of all paths, and which TCP connection takes which.

    Args:
        links: the link's own lines, one a direction, for packets that are not TCP's.
        impairments: of each path, the same in both directions.
    """

    links: tuple[DelayLine, DelayLine]
    impairments: Sequence[Impairment]
    lines: tuple[tuple[DelayLine, DelayLine], ...] = field(init=False)
    """By path, then by direction."""
    _known: tuple[dict[bytes, _TcpFlow], dict[bytes, _TcpFlow]] = field(default_factory=lambda: ({}, {}))
    """By direction; the ends of a connection are in the order in which a packet of that direction has them."""

    def __post_init__(self) -> None:
        self.lines = tuple(
            (DelayLine(seed=2 * place + 3), DelayLine(seed=2 * place + 4)) for place in range(len(self.impairments))
        )
        for pair, impairment in zip(self.lines, self.impairments, strict=True):
            for line in pair:
                line.configure(impairment)

    def accept(self, direction: int, packet: bytes, now_ns: int) -> None:
        """Queue a packet, of direction 0 or 1, on the path of its connection."""
        if packet[PROTOCOL] != TCP or packet[VNET_HEADER_BYTES] != IPV4_WITHOUT_OPTIONS:
            self.links[direction].accept(packet, now_ns)
            return
        ends = packet[ENDS]
        connection = self._known[direction].get(ends)
        if connection is None:
            if not _begins_or_carries(packet):
                # The end of a connection from before the paths, which must not take a turn.
                self.links[direction].accept(packet, now_ns)
                return
            connection = self._add(direction, ends)
        connection.is_active = True
        connection.lines[direction].accept(packet, now_ns)

    def _add(self, direction: int, ends: bytes) -> _TcpFlow:
        path = len(self._known[0]) % len(self.lines)
        connection = _TcpFlow(path, self.lines[path])
        self._known[direction][ends] = connection
        self._known[1 - direction][ends[4:8] + ends[:4] + ends[10:] + ends[8:10]] = connection
        return connection

    def counters(self) -> list[PathCounters]:
        """Read the counters of each path."""
        active = [0] * len(self.lines)
        for connection in self._known[0].values():
            active[connection.path] += connection.is_active
            connection.is_active = False
        return [
            PathCounters(
                connections=active[place],
                packets=sum(line.packets for line in pair),
                bytes=sum(line.bytes for line in pair),
                lost=sum(line.lost for line in pair),
                drops=sum(line.drops for line in pair),
            )
            for place, pair in enumerate(self.lines)
        ]

    def dissolve(self) -> None:
        """Give the packets that wait, and the counters of all but the drops, to the link's own lines."""
        for direction, link in enumerate(self.links):
            for pair in self.lines:
                link.absorb(pair[direction])


def _begins_or_carries(packet: bytes) -> bool:
    """Whether a TCP packet begins a connection or has data."""
    header_bytes = 4 * (packet[_TCP_HEADER + 12] >> 4)
    return bool(packet[_FLAGS] & _SYN) or len(packet) > _TCP_HEADER + header_bytes
