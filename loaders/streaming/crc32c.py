"""CRC-32C (Castagnoli) of byte strings, vectorised with NumPy.

A CRC is linear over GF(2): every byte of a row adds a term that depends on its value and on its distance to
the row's end only. So a row is one table gather and one XOR reduction, and rows are joined the same way.
Polynomial 0x1EDC6F41, reflected, initial value and final XOR 0xFFFFFFFF (RFC 3720, appendix B.4).
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

__all__ = ["crc32c"]

_REFLECTED_POLYNOMIAL = 0x82F63B78
_ROW = 256
"""Bytes per row: the tables of one row, 256 KiB, stay in the L2 cache."""
_GROUP = 32
"""Rows joined by one gather."""
_SHORT = 64
"""Below this many bytes a plain loop is quicker than NumPy's calls."""

_U32 = npt.NDArray[np.uint32]


@cache
def _byte_table() -> tuple[int, ...]:
    """Return the register after one byte, for a register of 0."""
    table = []
    for value in range(256):
        register = value
        for _ in range(8):
            register = (register >> 1) ^ (_REFLECTED_POLYNOMIAL if register & 1 else 0)
        table.append(register)
    return tuple(table)


@cache
def _row_table() -> _U32:
    """Return what byte value v at position p of a row adds to the register, shape (_ROW, 256)."""
    step = np.array(_byte_table(), np.uint32)
    table = np.empty((_ROW, 256), np.uint32)
    table[-1] = step
    for position in range(_ROW - 2, -1, -1):
        following = table[position + 1]
        table[position] = (following >> 8) ^ step[following & 0xFF]
    return table


def _past_row(register: _U32) -> _U32:
    """Return the registers after one more row of zeros."""
    table = _row_table()
    # A register meets the next four bytes by XOR, so it is looked up as if it were those bytes.
    past: _U32 = (
        table[0][register & 0xFF]
        ^ table[1][(register >> 8) & 0xFF]
        ^ table[2][(register >> 16) & 0xFF]
        ^ table[3][register >> 24]
    )
    return past


@cache
def _group_table() -> _U32:
    """Return what byte k of row r's register adds to its group's, shape (_GROUP, 4, 256)."""
    values = np.arange(256, dtype=np.uint32)
    table = np.empty((_GROUP, 4, 256), np.uint32)
    table[-1] = [values << (8 * k) for k in range(4)]
    for row in range(_GROUP - 2, -1, -1):
        table[row] = _past_row(table[row + 1])
    return table


@cache
def _past_group() -> tuple[tuple[int, ...], ...]:
    """Return what byte k of a register becomes after one more group of zeros, four tables of 256."""
    return tuple(tuple(int(v) for v in table) for table in _past_row(_group_table()[0]))


@cache
def _gathers() -> tuple[_U32, npt.NDArray[np.intp], _U32, npt.NDArray[np.intp]]:
    """Return both tables flat, each with the offset of every position's part."""
    rows, groups = _row_table().ravel(), _group_table().ravel()
    return rows, np.arange(_ROW) * 256, groups, np.arange(_GROUP * 4) * 256


def _short(data: memoryview) -> int:
    table, register = _byte_table(), 0xFFFFFFFF
    for byte in data:
        register = (register >> 8) ^ table[(register ^ byte) & 0xFF]
    return register ^ 0xFFFFFFFF


def crc32c(data: bytes | bytearray | memoryview) -> int:
    """Return the CRC-32C of contiguous bytes, an unsigned 32-bit number."""
    view = memoryview(data).cast("B")
    if len(view) < _SHORT:
        return _short(view)
    # Zeros in front leave a register of 0 as it is, so the message is filled up to whole groups there;
    # the initial value is the same as inverting the first four bytes.
    length = len(view)
    filled = np.zeros(-(-length // (_ROW * _GROUP)) * _ROW * _GROUP, np.uint8)
    start = len(filled) - length
    filled[start:] = view
    filled[start : start + 4] ^= 0xFF
    row_table, row_offsets, group_table, group_offsets = _gathers()
    first = start // _ROW
    registers = np.zeros(len(filled) // _ROW, "<u4")
    registers[first:] = np.bitwise_xor.reduce(row_table.take(filled.reshape(-1, _ROW)[first:] + row_offsets), axis=1)
    grouped = registers.view(np.uint8).reshape(-1, _GROUP * 4) + group_offsets
    past = _past_group()
    register = 0
    for joined in np.bitwise_xor.reduce(group_table.take(grouped), axis=1).tolist():
        register = (
            past[0][register & 0xFF]
            ^ past[1][(register >> 8) & 0xFF]
            ^ past[2][(register >> 16) & 0xFF]
            ^ past[3][register >> 24]
            ^ joined
        )
    return register ^ 0xFFFFFFFF
