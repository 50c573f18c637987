"""TUN devices that carry whole segmentation super-packets (linux/if_tun.h, linux/virtio_net.h)."""

from __future__ import annotations

import fcntl
import itertools
import os
import struct
from collections.abc import Sequence

from harness.errors import TestbedError

TUN_PATH = "/dev/net/tun"
TUNSETIFF = 0x400454CA
TUNSETOFFLOAD = 0x400454D0
TUNSETVNETHDRSZ = 0x400454D8
IFF_TUN, IFF_NO_PI, IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
TUN_F_CSUM, TUN_F_TSO4, TUN_F_TSO6, TUN_F_TSO_ECN = 0x01, 0x02, 0x04, 0x08

VNET_HEADER_BYTES = 10
READ_BYTES = VNET_HEADER_BYTES + 65536

# struct virtio_net_hdr: flags, gso_type, hdr_len, gso_size, csum_start, csum_offset
VNET_HEADER = struct.Struct("=BBHHHH")
GSO_NONE = 0
# Places in an IPv4 and a TCP header (RFC 791, RFC 9293).
IP_LENGTH, IP_ID, IP_CHECKSUM, IP_ADDRESSES, IP_TCP = 2, 4, 10, 12, 6
TCP_SEQUENCE, TCP_OFFSET, TCP_FLAGS, TCP_CHECKSUM = 4, 12, 13, 16
FIN, PSH, CWR = 0x01, 0x08, 0x80


def open_tun(name: str) -> int:
    """Make the TUN device in the calling thread's network namespace; it lives as long as the descriptor.

    Raises TestbedError when /dev/net/tun is missing or closed to this user, or the name is taken.
    """
    try:
        descriptor = os.open(TUN_PATH, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise TestbedError(
            f"{TUN_PATH}: {error.strerror}; the delay line needs it readable and writable (modprobe tun; run as root)"
        ) from error
    try:
        flags = IFF_TUN | IFF_NO_PI | IFF_VNET_HDR
        fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
        fcntl.ioctl(descriptor, TUNSETVNETHDRSZ, struct.pack("i", VNET_HEADER_BYTES))
        fcntl.ioctl(descriptor, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6 | TUN_F_TSO_ECN)
    except OSError as error:
        os.close(descriptor)
        raise TestbedError(
            f"TUN device {name}: {error.strerror}; expected CAP_NET_ADMIN in the namespace and a free name"
        ) from error
    return descriptor


def wire_size(packet: bytes) -> tuple[int, int]:
    """Return how many IP packets a read of the device contains, and how many bytes they have on the wire.

    It contains the virtio header and a packet, which may be a super-packet: a wire repeats its headers in each segment.
    """
    length = len(packet) - VNET_HEADER_BYTES
    _, gso_type, _, gso_size, csum_start, _ = VNET_HEADER.unpack_from(packet)
    if gso_type == GSO_NONE or not gso_size:
        return 1, length
    headers = _header_bytes(packet, csum_start)
    segments = -(-(length - headers) // gso_size)
    return segments, length + (segments - 1) * headers


def without_segments(packet: bytes, lost: Sequence[int]) -> list[bytes]:
    """Return the rest of a super-packet, cut as the kernel cuts it, when some of its segments are lost.

    Args:
        packet: the virtio header and the IP packet.
        lost: places of the segments that are lost, ascending; 0 is the only one of a packet that is no super-packet.

    A packet of IPv6, which the links do not carry, is lost whole.
    """
    count, _ = wire_size(packet)
    if packet[VNET_HEADER_BYTES] >> 4 != 4:
        return []
    edges = [-1, *lost, count]
    kept = [(before + 1, after) for before, after in itertools.pairwise(edges) if after - before > 1]
    return [_segments(packet, first, end, count) for first, end in kept]


def _segments(packet: bytes, first: int, end: int, count: int) -> bytes:
    """Return the segments of a super-packet from the `first` up to the `end`-th of `count` as a packet."""
    flags, gso_type, hint, gso_size, tcp, csum_offset = VNET_HEADER.unpack_from(packet)
    length = _header_bytes(packet, tcp)
    at = VNET_HEADER_BYTES + length
    payload = packet[at + first * gso_size : at + end * gso_size]
    headers = bytearray(packet[VNET_HEADER_BYTES:at])
    total = length + len(payload)
    (ident,) = struct.unpack_from(">H", headers, IP_ID)
    struct.pack_into(">H", headers, IP_LENGTH, total)
    struct.pack_into(">H", headers, IP_ID, (ident + first) & 0xFFFF)
    struct.pack_into(">H", headers, IP_CHECKSUM, 0)
    struct.pack_into(">H", headers, IP_CHECKSUM, ~ones_sum(headers[:tcp]) & 0xFFFF)
    (sequence,) = struct.unpack_from(">I", headers, tcp + TCP_SEQUENCE)
    struct.pack_into(">I", headers, tcp + TCP_SEQUENCE, (sequence + first * gso_size) & 0xFFFFFFFF)
    headers[tcp + TCP_FLAGS] &= 0xFF & ~((CWR if first else 0) | (FIN | PSH if end < count else 0))
    # The kernel completes the checksum, which holds the sum of the pseudo-header until then.
    pseudo = headers[IP_ADDRESSES : IP_ADDRESSES + 8] + struct.pack(">HH", IP_TCP, total - tcp)
    struct.pack_into(">H", headers, tcp + TCP_CHECKSUM, ones_sum(pseudo))
    gso_type, gso_size = (gso_type, gso_size) if end - first > 1 else (GSO_NONE, 0)
    return VNET_HEADER.pack(flags, gso_type, hint, gso_size, tcp, csum_offset) + bytes(headers) + payload


def _header_bytes(packet: bytes, tcp: int) -> int:
    """Return the bytes of the IP and TCP headers; hdr_len of the virtio header is only a hint."""
    words: int = packet[VNET_HEADER_BYTES + tcp + TCP_OFFSET] >> 4
    return tcp + 4 * words


def ones_sum(data: bytes | bytearray) -> int:
    """Return the ones' complement sum of 16-bit words (RFC 1071)."""
    total: int = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total
