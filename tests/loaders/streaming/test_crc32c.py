from __future__ import annotations

import random

import pytest

from loaders.streaming.crc32c import crc32c


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
    ],
)
def test_agrees_with_the_published_check_values(data: bytes, expected: int) -> None:
    assert crc32c(data) == expected  # RFC 3720, appendix B.4


def _bit_by_bit(data: bytes) -> int:
    register = 0xFFFFFFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = (register >> 1) ^ (0x82F63B78 if register & 1 else 0)
    return register ^ 0xFFFFFFFF


@pytest.mark.parametrize("length", [63, 64, 65, 255, 256, 257, 8191, 8192, 8193, 16384, 40001])
def test_agrees_with_the_definition_around_every_block_size(length: int) -> None:
    data = random.Random(length).randbytes(length)
    assert crc32c(data) == crc32c(memoryview(data)) == _bit_by_bit(data)
