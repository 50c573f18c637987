from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from harness.testbed.link.delay_line import DelayLine, Impairment
from harness.testbed.link.tun import VNET_HEADER_BYTES, wire_size

MS = 1_000_000


def plain(size: int = 100) -> bytes:
    return bytes(VNET_HEADER_BYTES) + bytes(size)


def super_packet(payload: int, segment: int = 1448, headers: int = 52) -> bytes:
    vnet = struct.pack("=BBHHHH", 1, 1, headers, segment, 20, 16)
    ip_and_tcp = bytearray(headers)
    ip_and_tcp[20 + 12] = ((headers - 20) // 4) << 4
    return vnet + bytes(ip_and_tcp) + bytes(payload)


def filled(impairment: Impairment, arrivals_ns: list[int], packet: bytes) -> DelayLine:
    line = DelayLine(seed=0)
    line.configure(impairment)
    for now_ns in arrivals_ns:
        line.accept(packet, now_ns)
    return line


def test_a_packet_is_due_one_delay_after_it_came():
    line = filled(Impairment(delay_ns=15 * MS), [0, 3 * MS], plain())
    assert [release for release, _ in line.waiting] == [15 * MS, 18 * MS]


def test_a_shorter_delay_does_not_let_later_packets_overtake():
    line = filled(Impairment(delay_ns=15 * MS), [0], plain())
    line.configure(Impairment(delay_ns=1 * MS))
    line.accept(plain(), 2 * MS)
    assert [release for release, _ in line.waiting] == [15 * MS, 15 * MS]


def test_a_cap_spaces_packets_by_their_time_on_the_wire():
    line = filled(Impairment(rate_bits_s=8_000_000, queue_ns=10 * MS), [0, 0, 0], plain(1000))
    assert [release for release, _ in line.waiting] == [1 * MS, 2 * MS, 3 * MS]


def test_a_packet_that_would_wait_longer_than_the_queue_is_dropped_and_counted():
    line = filled(Impairment(rate_bits_s=8_000_000, queue_ns=2 * MS), [0] * 5, plain(1000))
    assert len(line.waiting) == 3
    assert line.drops == 2
    assert line.packets == 3
    assert line.bytes == 3000


def test_wanted_losses_are_not_drops():
    line = filled(Impairment(loss=0.5), [0] * 1000, plain())
    assert line.drops == 0
    assert 400 < line.lost < 600
    assert line.lost + line.packets == 1000


def test_the_same_seed_loses_the_same_packets():
    lost = [filled(Impairment(loss=0.1), [0] * 300, plain()).lost for _ in range(2)]
    assert lost[0] == lost[1]


@given(
    arrivals=st.lists(st.integers(0, 100 * MS), min_size=1, max_size=50).map(sorted),
    jitter_ns=st.integers(0, 5 * MS),
    rate_bits_s=st.none() | st.integers(1_000_000, 10_000_000_000),
)
def test_no_packet_leaves_before_it_came_or_overtakes_another(arrivals, jitter_ns, rate_bits_s):
    impairment = Impairment(delay_ns=MS, jitter_ns=jitter_ns, rate_bits_s=rate_bits_s, queue_ns=10**12)
    releases = [release for release, _ in filled(impairment, arrivals, plain()).waiting]
    assert releases == sorted(releases)
    assert all(release >= came for release, came in zip(releases, arrivals, strict=True))


def test_a_plain_packet_is_one_of_its_own_length():
    assert wire_size(plain(777)) == (1, 777)


def test_a_super_packet_counts_its_headers_once_per_segment():
    assert wire_size(super_packet(3 * 1448 + 1)) == (4, 3 * 1448 + 1 + 4 * 52)
