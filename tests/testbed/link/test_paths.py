"""Packets of one connection stay on one path, in order, and what is not TCP takes the link itself."""

from __future__ import annotations

import struct
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from harness.testbed.link.userspace.delay_line import DelayLine, Impairment
from harness.testbed.link.userspace.paths import Paths
from harness.testbed.link.userspace.tun import VNET_HEADER_BYTES

MS = 1_000_000
STORAGE, COMPUTE = b"\x0a\x4d\x00\x01", b"\x0a\x4d\x00\x02"
SERVER = 9042


def packet(client: int, *, down: bool, protocol: int = 6, size: int = 100, number: int = 0) -> bytes:
    """Return a packet of a client's connection with the server, which lies on the storage node."""
    ends = (STORAGE, COMPUTE) if down else (COMPUTE, STORAGE)
    ports = (SERVER, client) if down else (client, SERVER)
    header = struct.pack(">BBHHHBBH4s4s", 0x45, 0, size, 0, 0, 64, protocol, 0, *ends)
    body = struct.pack(">HH", *ports) + struct.pack(">I", number)
    return bytes(VNET_HEADER_BYTES) + (header + body).ljust(size, b"\0")


def made(*impairments: Impairment) -> Paths:
    return Paths((DelayLine(seed=1), DelayLine(seed=2)), impairments)


def test_connections_take_the_paths_in_turn_and_stay_on_them_both_ways():
    paths = made(Impairment(), Impairment(), Impairment())
    for client in (40_000, 50_123, 41_777, 60_001):
        paths.accept(1, packet(client, down=False), 0)
    for client in (41_777, 40_000, 60_001):
        paths.accept(0, packet(client, down=True), 0)
    carried = [tuple(line.packets for line in pair) for pair in paths.lines]
    assert carried == [(2, 2), (0, 1), (1, 1)]  # (to compute, to storage)
    assert [path.connections for path in paths.counters()] == [2, 1, 1]


def test_connections_are_counted_as_those_that_sent_since_the_last_count():
    paths = made(Impairment(), Impairment())
    for client in (1, 2, 3):
        paths.accept(1, packet(client, down=False), 0)
    first = paths.counters()
    paths.accept(0, packet(2, down=True, size=1000), 0)
    epoch = [now.since(before) for now, before in zip(paths.counters(), first, strict=True)]
    assert [(path.connections, path.packets, path.bytes) for path in epoch] == [(0, 0, 0), (1, 1, 1000)]


def test_probes_do_not_take_a_path():
    paths = made(Impairment(delay_ns=500 * MS, loss=0.9))
    paths.accept(0, packet(7, down=True, protocol=1), 0)
    paths.accept(1, packet(7, down=False, protocol=17), 0)
    assert [len(link.waiting) for link in paths.links] == [1, 1]
    assert paths.counters()[0].packets == 0


def test_the_end_of_a_connection_from_before_the_paths_takes_no_turn():
    paths = made(Impairment(), Impairment())
    last = bytearray(packet(9, down=True, size=40))
    last[VNET_HEADER_BYTES + 32] = 5 << 4  # a TCP header of 20 bytes
    for flags, carried in ((0x11, [1, 0]), (0x04, [2, 0])):  # FIN and ACK; RST
        last[VNET_HEADER_BYTES + 33] = flags
        paths.accept(0, bytes(last), 0)
        assert [len(link.waiting) for link in paths.links] == carried
    last[VNET_HEADER_BYTES + 33] = 0x12  # SYN and ACK
    paths.accept(0, bytes(last), 0)
    assert [path.connections for path in paths.counters()] == [1, 0]


def test_a_slow_path_delays_and_drops_only_its_own_connections():
    slow = Impairment(delay_ns=75 * MS, rate_bits_s=8_000_000, queue_ns=10 * MS)
    paths = made(Impairment(delay_ns=75 * MS), slow)
    for client in (1, 2):
        for _ in range(20):
            paths.accept(0, packet(client, down=True, size=1000), 0)
    quick, late = ([release for release, _ in pair[0].waiting] for pair in paths.lines)
    assert quick == [75 * MS] * 20
    assert [after - before for before, after in pairwise(late)] == [1 * MS] * (len(late) - 1)
    assert [path.drops for path in paths.counters()] == [0, 20 - len(late)]


@given(
    arrivals=st.lists(st.tuples(st.integers(1, 6), st.integers(0, 100 * MS)), min_size=1, max_size=60),
    jitters=st.lists(st.integers(0, 20 * MS), min_size=1, max_size=4),
)
def test_packets_of_one_connection_keep_their_order(arrivals, jitters):
    paths = made(*(Impairment(delay_ns=20 * MS, jitter_ns=jitter) for jitter in jitters))
    for number, (client, now_ns) in enumerate(sorted(arrivals, key=lambda one: one[1])):
        paths.accept(0, packet(client, down=True, number=number), now_ns)
    left: dict[int, list[tuple[int, int]]] = {}
    for pair in paths.lines:
        for release_ns, waiting in pair[0].waiting:
            _, client, number = struct.unpack_from(">HHI", waiting, VNET_HEADER_BYTES + 20)
            left.setdefault(client, []).append((number, release_ns))
    assert sum(map(len, left.values())) == len(arrivals)
    for queue in left.values():
        assert queue == sorted(queue)
        assert [release for _, release in queue] == sorted(release for _, release in queue)


def test_packets_that_wait_on_a_path_outlast_it_and_keep_their_time():
    paths = made(Impairment(delay_ns=5 * MS), Impairment(delay_ns=30 * MS))
    for client in (1, 2, 3):
        paths.accept(0, packet(client, down=True), client * MS)
    paths.dissolve()
    assert [release for release, _ in paths.links[0].waiting] == [6 * MS, 8 * MS, 32 * MS]
    assert paths.links[0].packets == 3
