from __future__ import annotations

import random

import pytest

from loaders.records.shards.tfrecord import masked_crc32c


def _unmasked(masked: int) -> int:
    rotated = (masked - 0xA282EAD8) & 0xFFFFFFFF
    return (rotated >> 17 | rotated << 15) & 0xFFFFFFFF


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
    assert _unmasked(masked_crc32c(data)) == expected  # RFC 3720, appendix B.4


def test_is_masked_as_the_format_asks() -> None:
    # rotated right by 15 and increased: 0xE3069283 -> 0x2507C60D + 0xA282EAD8
    assert masked_crc32c(b"123456789") == 0xC78AB0E5


def _bit_by_bit(data: bytes) -> int:
    register = 0xFFFFFFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = (register >> 1) ^ (0x82F63B78 if register & 1 else 0)
    return register ^ 0xFFFFFFFF


@pytest.mark.parametrize("length", [1, 63, 64, 65, 8191, 8192, 8193, 40001])
def test_agrees_with_the_definition_whatever_holds_the_bytes(length: int) -> None:
    data = random.Random(length).randbytes(length)
    expected = _bit_by_bit(data)
    for held in (data, bytearray(data), memoryview(data), memoryview(b"x" + data)[1:]):
        assert _unmasked(masked_crc32c(held)) == expected
