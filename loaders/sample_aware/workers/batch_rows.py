"""The memory of a batch, into which its worker copies large samples one by one, so that stacking them is no work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import torch
from torch.overrides import TorchFunctionMode

from loaders.sample_aware.ipc.messages import Value
from loaders.sample_aware.ipc.serialize import PackedValue, Spec, aligned, copy_to, layout, pack, rows_of, unpack

MIN_BYTES: Final = 1 << 16
"""Of a sample's tensors, from which a copy of each into its row gains more than it costs."""


class BatchRows:
    """Rows for samples of equal tensor shapes and dtypes; others are left as they are."""

    def __init__(self, memory: torch.Tensor, begin: int, nbytes: int, rows: int) -> None:
        """Use so many bytes of `memory` from `begin` on."""
        self._memory, self._begin, self._nbytes, self._rows = memory, begin, nbytes, rows
        self._spec: Spec | None = None
        self._begins: list[int] = []
        self._leaves: list[Value] = []
        self._used = 0
        self.end = 0
        """Bytes that the rows take."""
        self.regions: list[torch.Tensor] = []
        """Tensors of all rows, one for each tensor of a sample."""

    def add(self, sample: Value) -> Value:
        """Return the sample, with its tensors in the next row where they fit there."""
        try:
            packed = pack(sample)
        except Exception:  # noqa: BLE001 - pickling raises whatever the objects do
            return sample
        if self._spec is None:
            self._spec = packed.spec
            self._prepare(packed.spec)
        if not self._leaves or packed.spec != self._spec:
            return sample
        row, self._used = self._used, self._used + 1
        for begin, leaf, values in zip(self._begins, packed.spec, packed.leaves, strict=True):
            copy_to(self._memory, self._begin + begin + row * leaf.nbytes, leaf, values)
        return unpack(packed.payload, [leaf[row] for leaf in self._leaves])

    def begins(self, packed: PackedValue) -> tuple[list[int], list[int], int]:
        """Return where the tensors of a batch begin, which of them are there already, and where the rest goes."""
        begins, there, end = [], [], self.end
        first = self._memory.data_ptr() + self._begin
        for number, (leaf, values) in enumerate(zip(packed.spec, packed.leaves, strict=True)):
            at = values.data_ptr() - first if isinstance(values, torch.Tensor) and leaf.nbytes else -1
            if 0 <= at < self.end and values.is_contiguous():
                there.append(number)
                begins.append(at)
            else:
                begins.append(end)
                end += aligned(leaf.nbytes)
        return begins, there, end

    def _prepare(self, spec: Spec) -> None:
        self._begins, end = layout(spec, self._rows)
        if end > self._nbytes:
            return
        self.end = end
        whole = self._memory.numpy()
        for begin, leaf in zip(self._begins, spec, strict=True):
            region = rows_of(whole, self._begin + begin, leaf, self._rows)
            if isinstance(region, torch.Tensor):
                self.regions.append(region)
            else:
                with suppress(TypeError):  # of a type that torch does not have
                    self.regions.append(torch.from_numpy(region))
            self._leaves.append(region)


class StackedInPlace(TorchFunctionMode):
    """While it is entered, the first `torch.stack` of the rows of a region returns the region, in this thread.

    Later stacks of the same rows copy them, so no two results share memory. The result shares memory with the samples:
    only a collation that does not touch them afterwards may run in it, such as torch's own and this project's.
    """

    def __init__(self, regions: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self._regions = {region.data_ptr(): region for region in regions if region.numel()}

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[Value, ...] = (),
        kwargs: dict[str, Value] | None = None,
    ) -> Value:
        kwargs = kwargs or {}
        if func is torch.stack:
            found = self._region(*args, **kwargs)
            if found is not None:
                return found
        return func(*args, **kwargs)

    def _region(self, tensors: object = (), dim: int = 0, *, out: torch.Tensor | None = None) -> torch.Tensor | None:
        if dim != 0 or out is not None or not isinstance(tensors, list | tuple) or not tensors:
            return None
        first = tensors[0]
        region = self._regions.get(first.data_ptr()) if isinstance(first, torch.Tensor) else None
        if region is None or len(tensors) > len(region):
            return None
        shape, dtype, begin = region.shape[1:], region.dtype, region.data_ptr()
        step = region.stride(0) * region.element_size()
        for row, tensor in enumerate(tensors):
            whole = tensor.shape == shape and tensor.dtype == dtype and tensor.is_contiguous()
            if not whole or tensor.data_ptr() != begin + row * step:
                return None
        return self._regions.pop(begin)[: len(tensors)]
