"""TUN devices that carry whole segmentation super-packets (linux/if_tun.h, linux/virtio_net.h)."""

from __future__ import annotations

import fcntl
import os
import struct

from harness.errors import TestbedError

__all__ = ["READ_BYTES", "VNET_HEADER_BYTES", "open_tun", "wire_size"]

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


def open_tun(name: str) -> int:
    """Make the TUN device in the calling thread's network namespace; it lives as long as the descriptor.

    Raises:
        TestbedError: /dev/net/tun is missing or closed to this user, or the name is taken.
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
    """Tell how many IP packets a read of the device stands for, and how many bytes they have on the wire.

    Args:
        packet: the virtio header and the IP packet, which may be a super-packet that repeats its headers
            once per segment on a real wire.
    """
    length = len(packet) - VNET_HEADER_BYTES
    _, gso_type, _, gso_size, csum_start, _ = VNET_HEADER.unpack_from(packet)
    if gso_type == GSO_NONE or not gso_size:
        return 1, length
    # hdr_len is only a hint; the checksum starts at the TCP header, whose length is in its 13th byte.
    headers = csum_start + (packet[VNET_HEADER_BYTES + csum_start + 12] >> 4) * 4
    segments = -(-(length - headers) // gso_size)
    return segments, length + (segments - 1) * headers
