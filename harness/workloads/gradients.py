"""Gradients that the ranks of a cell synchronise: of a real model, or tensors of the same size in an emulation."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from torch._C._distributed_c10d import GradBucket

    from harness.workloads.base import Workload


_BUCKET_BYTES: Final = 25 * 2**20
"""What DDP all-reduces at once (`bucket_cap_mb`, default)."""


def gradient_bytes(model: torch.nn.Module) -> int:
    """Return the size of a model's gradients."""
    return sum(weight.numel() * weight.element_size() for weight in model.parameters() if weight.requires_grad)


class SynchronisedModel:
    """A model in DistributedDataParallel, and how long its last backward pass waited for gradients."""

    def __init__(self, model: torch.nn.Module, device: str) -> None:
        on_gpu = device == "cuda"
        self.nbytes = gradient_bytes(model)
        self.module = DistributedDataParallel(
            model, device_ids=[torch.cuda.current_device()] if on_gpu else None, gradient_as_bucket_view=True
        )
        self._on_gpu = on_gpu
        self._computed_ns = 0
        self._group = dist.distributed_c10d._get_default_group()  # the group of the cell's ranks
        self.module.register_comm_hook(None, lambda _, bucket: self._all_reduce(bucket))

    def backward(self, loss: torch.Tensor) -> int:
        """Run the backward pass; returns the ns from the rank's own last gradient to the mean over all ranks."""
        loss.backward()  # type: ignore[no-untyped-call]
        if self._on_gpu:
            torch.cuda.synchronize()
        return time.monotonic_ns() - self._computed_ns

    def _all_reduce(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        if bucket.is_last():
            if self._on_gpu:
                torch.cuda.current_stream().synchronize()
            self._computed_ns = time.monotonic_ns()
        return allreduce_hook(self._group, bucket)


class EmulatedGradients:
    """Tensors as large as a workload's gradients, in buckets as DDP makes them."""

    def __init__(self, workload: Workload) -> None:
        with torch.device("meta"):
            self.nbytes = gradient_bytes(workload.model())
        left = self.nbytes // 4
        self._buckets = [
            torch.zeros(min(_BUCKET_BYTES // 4, left - start)) for start in range(0, left, _BUCKET_BYTES // 4)
        ]
        self._under_way: list[Any] = []

    def start(self) -> None:
        """Start to all-reduce all buckets but the last, in the background."""
        self._under_way = [dist.all_reduce(bucket, async_op=True) for bucket in self._buckets[:-1]]

    def finish(self) -> None:
        """All-reduce the last bucket, and wait for all of them; raises RuntimeError when a rank is lost."""
        last = [dist.all_reduce(bucket, async_op=True) for bucket in self._buckets[-1:]]
        for work in self._under_way + last:
            work.wait()
