from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from harness.testbed.link.userspace.delay_line import DelayLine, Impairment
from harness.testbed.link.userspace.tun import VNET_HEADER_BYTES, wire_size, without_segments

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


def test_wanted_losses_are_not_drops_and_the_same_seed_loses_the_same_packets():
    line, again = (filled(Impairment(loss=0.5), [0] * 1000, plain()) for _ in range(2))
    assert line.drops == 0
    assert 400 < line.lost == again.lost < 600
    assert line.lost + line.packets == 1000


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


def test_a_super_packet_counts_its_headers_once_per_segment():
    assert wire_size(plain(777)) == (1, 777)
    assert wire_size(super_packet(3 * 1448 + 1)) == (4, 3 * 1448 + 1 + 4 * 52)


def tcp_super_packet(payload: bytes, *, sequence: int, segment: int, flags: int) -> bytes:
    ip = struct.pack(
        ">BBHHHBBH4s4s", 0x45, 0, 52 + len(payload), 65_535, 0x4000, 64, 6, 0, b"\x0a\1\2\3", b"\x0a\4\5\6"
    )
    tcp = struct.pack(">HHIIBBHHH12s", 1, 2, sequence, 7, 8 << 4, flags, 100, 0, 0, b"t" * 12)
    return struct.pack("=BBHHHH", 1, 1, 52, segment, 20, 16) + ip + tcp + payload


def ones_sum(data: bytes) -> int:
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def test_what_is_left_of_a_super_packet_are_its_other_segments_with_headers_of_their_own():
    payload = bytes(range(250))
    packet = tcp_super_packet(payload, sequence=2**32 - 50, segment=100, flags=0x80 | 0x10 | 0x08 | 0x01)
    assert wire_size(packet)[0] == 3
    whole = {
        (0, 2): (0x90, 1, 100),
        (2, 3): (0x19, 0, 0),
        (1, 3): (0x19, 1, 100),
        (0, 1): (0x90, 0, 0),
        (1, 2): (0x10, 0, 0),
    }
    for lost, kept in (([2], [(0, 2)]), ([1], [(0, 1), (2, 3)]), ([0], [(1, 3)]), ([0, 2], [(1, 2)]), ([0, 1, 2], [])):
        parts = without_segments(packet, lost)
        assert len(parts) == len(kept)
        for part, (first, end) in zip(parts, kept, strict=True):
            flags, gso_type, gso_size = whole[first, end]
            assert struct.unpack("=BBHHHH", part[:10])[1:4:2] == (gso_type, gso_size)
            body = part[VNET_HEADER_BYTES:]
            assert body[52:] == payload[first * 100 : end * 100]
            assert wire_size(part) == (end - first, len(body[52:]) + 52 * (end - first))
            assert struct.unpack(">H", body[2:4])[0] == len(body)
            assert struct.unpack(">H", body[4:6])[0] == (65_535 + first) % 2**16
            assert ones_sum(body[:20]) == 0xFFFF
            assert struct.unpack(">I", body[24:28])[0] == (2**32 - 50 + first * 100) % 2**32
            assert body[33] == flags
            assert struct.unpack(">H", body[36:38])[0] == ones_sum(body[12:20] + struct.pack(">HH", 6, len(body) - 20))


def test_segments_of_super_packets_are_lost_one_by_one():
    line = DelayLine(seed=0)
    line.configure(Impairment(loss=0.01))
    packet = tcp_super_packet(bytes(4000), sequence=1, segment=100, flags=0x10)
    for _ in range(2000):
        line.accept(packet, 0)
    assert line.packets + line.lost == 80_000
    assert 0.008 < line.lost / 80_000 < 0.012
    assert line.bytes == line.packets * 152
