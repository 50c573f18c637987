"""A stack of rows that lie one after another is the memory that they lie in: nothing is copied."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

__all__ = ["StackedInPlace"]


class StackedInPlace(TorchFunctionMode):
    """While it is entered, the first `torch.stack` of the rows of a region returns the region, in this thread.

    Later stacks of the same rows copy them, so no two results share memory. The result shares memory with the samples:
    only a collation that does not touch them afterwards may run in it, such as torch's own and this project's.
    """

    def __init__(self, regions: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self._regions = {region.data_ptr(): region for region in regions if region.numel()}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.stack:
            found = self._region(*args, **kwargs)
            if found is not None:
                return found
        return func(*args, **kwargs)

    def _region(self, tensors: Any = (), dim: int = 0, *, out: torch.Tensor | None = None) -> torch.Tensor | None:
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
