"""Samples and batches in two parts: tensors, which lie in shared memory, and the rest, which is pickled."""

from __future__ import annotations

import ctypes
import io
import pickle
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from loaders.sample_aware.ipc.messages import ArenaPlace, Value

_ALIGNED: Final = 64
_TENSOR, _ARRAY = "t", "n"


class Leaf(NamedTuple):
    """A tensor or an array of a sample, without its values."""

    kind: str
    """t: a tensor; n: an array."""
    dtype: str
    shape: tuple[int, ...]
    nbytes: int


Spec: TypeAlias = tuple[Leaf, ...]
"""The tensors of a sample, in the order in which they are met."""


class PackedValue(NamedTuple):
    """A sample or a batch that is ready to be written down."""

    payload: bytes
    leaves: list[Value]
    spec: Spec


def pack(value: Value, *, strides: bool = False) -> PackedValue:
    """Take the tensors out of a sample or a batch; raises what pickling raises.

    With `strides` a tensor keeps the order of its dimensions in memory, channels_last for example, and one that is
    expanded is written down once; without it all are contiguous.
    """
    buffer = io.BytesIO()
    packer = _Packer(buffer, strides)
    packer.dump(value)
    return PackedValue(buffer.getvalue(), packer.leaves, tuple(packer.spec))


def unpack(payload: bytes | memoryview, leaves: Iterable[Value]) -> Value:
    """Return the value with these tensors and arrays for its own; packed by the other process of the pair."""
    return pickle.loads(payload, buffers=leaves)  # noqa: S301


def layout(spec: Spec, rows: int = 1) -> tuple[list[int], int]:
    """Return where the rows of each leaf begin, and the bytes of all together."""
    begins, at = [], 0
    for leaf in spec:
        begins.append(at)
        at += aligned(leaf.nbytes * rows)
    return begins, at


def aligned(nbytes: int) -> int:
    """Round up to where the next leaf may begin."""
    return -(-nbytes // _ALIGNED) * _ALIGNED


def copy_to(memory: torch.Tensor, at: int, leaf: Leaf, values: Value) -> None:
    """Write a leaf's values to a place of memory that is given as bytes."""
    if leaf.kind == _TENSOR and values.is_contiguous():
        # Without views, as torch's copy needs them.
        ctypes.memmove(memory.data_ptr() + at, values.data_ptr(), leaf.nbytes)
        return
    place = memory[at : at + leaf.nbytes]
    if leaf.kind == _TENSOR:
        place.view(values.dtype).view(leaf.shape).copy_(values)
    else:
        np.copyto(place.numpy().view(values.dtype).reshape(leaf.shape), values)


def pack_rest(packed: PackedValue, begins: Sequence[int]) -> bytes:
    """Return what lies in a block behind the tensors, which begin there."""
    return pickle.dumps((packed.payload, packed.spec, begins), pickle.HIGHEST_PROTOCOL)


def load(place: ArenaPlace, block: npt.NDArray[np.uint8], *, copy: bool = False) -> Value:
    """Return a sample or a batch from its block, or from the payload where it has none.

    With `copy` its tensors have memory of their own, else they share this one.
    """
    rest = place.payload or block[place.offset : place.offset + place.nbytes].data
    # Written by the other process of the pair.
    payload, spec, begins = pickle.loads(rest)  # noqa: S301
    found = [
        _shaped(block[begin : begin + leaf.nbytes], leaf, leaf.shape) for begin, leaf in zip(begins, spec, strict=True)
    ]
    if copy:
        found = [leaf.clone() if isinstance(leaf, torch.Tensor) else leaf.copy() for leaf in found]
    return unpack(payload, found)


def rows_of(memory: npt.NDArray[np.uint8], at: int, leaf: Leaf, rows: int) -> Value:
    """Return all rows of a leaf as one tensor or array that shares the memory."""
    return _shaped(memory[at : at + leaf.nbytes * rows], leaf, (rows, *leaf.shape))


def _shaped(place: npt.NDArray[np.uint8], leaf: Leaf, shape: Sequence[int]) -> Value:
    if leaf.kind == _TENSOR:
        # From its own bytes: the storage is then the tensor's alone.
        return torch.from_numpy(place).view(getattr(torch, leaf.dtype)).view(tuple(shape))
    return place.view(np.dtype(leaf.dtype)).reshape(tuple(shape))


def _same(leaf: Value) -> Value:
    return leaf


_HERE: Final = pickle.PickleBuffer(bytearray(1))
"""Stands for a leaf in the pickle; writable, because a read-only buffer comes back as another type."""


class _Packer(pickle.Pickler):
    def __init__(self, file: io.BytesIO, strides: bool) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL, buffer_callback=_goes_along)
        self.leaves: list[Value] = []
        self.spec: list[Leaf] = []
        self._strides = strides

    def reducer_override(self, value: Value) -> Value:
        leaf = _leaf(value)
        if leaf is None:
            return NotImplemented
        if self._strides and leaf.kind == _TENSOR and not value.is_contiguous():
            outer_first = sorted(range(value.dim()), key=value.stride, reverse=True)
            in_memory = value.permute(outer_first)
            if in_memory.is_contiguous():
                return torch.permute, (in_memory, tuple(np.argsort(outer_first).tolist()))
            if value.untyped_storage().nbytes() < leaf.nbytes:
                return NotImplemented
        self.leaves.append(value)
        self.spec.append(leaf)
        return _same, (_HERE,)


def _leaf(value: Value) -> Leaf | None:
    """Return the description of a tensor or an array, None for a value that is pickled."""
    kind = type(value)
    if kind is torch.Tensor:
        if value.layout is not torch.strided or value.is_nested or value.device.type != "cpu" or not _is_plain(value):
            return None
        # The name without its module, as torch has it.
        return Leaf(_TENSOR, str(value.dtype)[6:], tuple(value.shape), value.nbytes)
    if kind is np.ndarray or kind is np.memmap:
        if value.dtype.hasobject or value.dtype.names is not None:
            return None
        return Leaf(_ARRAY, value.dtype.str, value.shape, value.nbytes)
    return None


def _goes_along(buffer: pickle.PickleBuffer) -> bool:
    """Return whether the pickler writes a buffer: all but the one that stands for a leaf."""
    return buffer is not _HERE


def _is_plain(tensor: torch.Tensor) -> bool:
    return not (tensor.requires_grad or tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
