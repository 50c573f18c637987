"""A sample as what is pickled and what is not: tensors lie in shared memory, the rest goes along in bytes."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import torch

__all__ = ["Packed", "Spec", "copy_to", "load", "offsets", "pack", "rows_of", "spec_of", "unpack"]

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


class Packed(NamedTuple):
    """A sample that is ready to be written down."""

    payload: bytes
    leaves: list[Any]
    spec: Spec


def pack(sample: Any) -> Packed:
    """Take the tensors out of a sample; raises what pickling raises."""
    buffer = io.BytesIO()
    packer = _Packer(buffer)
    packer.dump(sample)
    return Packed(buffer.getvalue(), packer.leaves, tuple(packer.spec))


def unpack(payload: bytes | memoryview, leaves: Iterable[Any]) -> Any:
    """Return the sample with these tensors and arrays for its own; packed by the other process of the pair."""
    return pickle.loads(payload, buffers=leaves)  # noqa: S301


def offsets(spec: Spec, rows: int = 1) -> tuple[list[int], int]:
    """Return where the rows of each leaf begin, and the bytes of all together."""
    begins, at = [], 0
    for leaf in spec:
        begins.append(at)
        at += -(-leaf.nbytes * rows // _ALIGNED) * _ALIGNED
    return begins, at


def copy_to(whole: torch.Tensor, at: int, leaf: Leaf, values: Any) -> None:
    """Write a leaf's values to a place of the arena, given as bytes."""
    place = whole[at : at + leaf.nbytes]
    if leaf.kind == _TENSOR and leaf.nbytes and values.is_contiguous():
        # NumPy's copy of bytes takes two thirds of what torch's takes.
        np.copyto(place.numpy(), values.reshape(-1).view(torch.uint8).numpy())
    elif leaf.kind == _TENSOR:
        place.view(values.dtype).view(leaf.shape).copy_(values)
    else:
        np.copyto(place.numpy().view(values.dtype).reshape(leaf.shape), values)


def view(memory: torch.Tensor, at: int, leaf: Leaf) -> Any:
    """Return a leaf that lies in memory, given as bytes; a tensor or an array that shares it."""
    return _shaped(memory[at : at + leaf.nbytes], leaf, leaf.shape)


def load(memory: torch.Tensor, at: int, nbytes: int, *, copy: bool) -> Any:
    """Return a sample that lies apart: its tensors, and from `at` on how they lie and the rest of it.

    With `copy` its tensors have memory of their own, else they share this one.
    """
    # Written by the other process of the pair.
    payload, spec = pickle.loads(memory[at : at + nbytes].numpy().data)  # noqa: S301
    begins, total = offsets(spec)
    found = [view(memory, at - total + begin, leaf) for begin, leaf in zip(begins, spec, strict=True)]
    if copy:
        found = [leaf.clone() if isinstance(leaf, torch.Tensor) else leaf.copy() for leaf in found]
    return unpack(payload, found)


def spec_of(memory: torch.Tensor, at: int, nbytes: int) -> Spec:
    """Return the layout of a sample that lies apart."""
    _, spec = pickle.loads(memory[at : at + nbytes].numpy().data)  # noqa: S301
    found: Spec = spec
    return found


def rows_of(memory: torch.Tensor, at: int, leaf: Leaf, rows: int) -> Any:
    """Return all rows of a leaf as one tensor or array that shares the memory."""
    return _shaped(memory[at : at + leaf.nbytes * rows], leaf, (rows, *leaf.shape))


def _shaped(place: torch.Tensor, leaf: Leaf, shape: Sequence[int]) -> Any:
    if leaf.kind == _TENSOR:
        return place.view(getattr(torch, leaf.dtype)).view(tuple(shape))
    return place.numpy().view(np.dtype(leaf.dtype)).reshape(tuple(shape))


def _same(leaf: Any) -> Any:
    return leaf


_HERE: Final = pickle.PickleBuffer(bytearray(1))
"""Stands for a leaf in the pickle; writable, for what is read-only comes back as another type."""


class _Packer(pickle.Pickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL, buffer_callback=_goes_along)
        self.leaves: list[Any] = []
        self.spec: list[Leaf] = []

    def reducer_override(self, value: Any) -> Any:
        kind = type(value)
        if kind is torch.Tensor:
            if value.layout is not torch.strided or value.device.type != "cpu" or not _is_plain(value):
                return NotImplemented
            # The name without its module, as torch has it.
            leaf = Leaf(_TENSOR, str(value.dtype)[6:], tuple(value.shape), value.nbytes)
        elif kind is np.ndarray or kind is np.memmap:
            if value.dtype.hasobject or value.dtype.names is not None:
                return NotImplemented
            leaf = Leaf(_ARRAY, value.dtype.str, value.shape, value.nbytes)
        else:
            return NotImplemented
        self.leaves.append(value)
        self.spec.append(leaf)
        return _same, (_HERE,)


def _goes_along(buffer: pickle.PickleBuffer) -> bool:
    """Tell whether the pickler writes a buffer down: all do but the one that stands for what lies elsewhere."""
    return buffer is not _HERE


def _is_plain(tensor: torch.Tensor) -> bool:
    return not (tensor.requires_grad or tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
