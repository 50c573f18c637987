"""Samples into batches, in a thread of its own, ahead of the consumer."""

from __future__ import annotations

import ctypes
import os
import platform
import queue
import struct
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch.overrides import TorchFunctionMode

from loaders.sample_aware.coordinator.output_queue import OutputQueue, ReadyBatch
from loaders.sample_aware.ipc.arena import Arena, Block
from loaders.sample_aware.ipc.messages import IN_ROW, Report, Value
from loaders.sample_aware.ipc.serialize import Spec, load, load_report, offsets, rows_of, unpack
from loaders.shared.threads import use_one_thread

_SYSCALL: Final = {"x86_64": 314, "aarch64": 274}
"""sched_setattr(2)."""
_ATTR: Final = struct.Struct("=IIQiIQQQ")
_SLICE_NS: Final = 100_000
"""The shortest that there is."""


class Collate(ABC):
    """From samples to what the consumer takes."""

    in_place: bool = False
    """Whether a batch may share memory with its samples: the collation neither changes nor keeps them."""
    finishes: bool = False
    """Whether `finish` does anything."""

    @abstractmethod
    def __call__(self, keys: Sequence[Value], samples: Sequence[Value], work_ns: Sequence[int]) -> Value:
        """Return a batch of keys, samples and the time that each sample took, in ns."""

    def finish(self, batch: Value) -> Value:
        """Return what the consumer takes of a batch that may have been collated by a worker."""
        return batch


@dataclass(frozen=True, slots=True)
class Rows:
    """Memory of a batch into which workers write."""

    block: Block
    spec: Spec
    rows: int


@dataclass(frozen=True, slots=True)
class CollateRequest:
    """A batch that is to be built."""

    output: OutputQueue
    samples: Sequence[int]
    keys: Sequence[object]
    work_ns: Sequence[int]
    """What each sample took."""
    reports: Sequence[Report]
    blocks: Sequence[Block | None]
    """Of samples that lie apart."""
    rows: Rows | None
    collated: tuple[Report, Block | None] | None = None
    """Where the batch lies that a worker has collated."""
    error: BaseException | None = None
    """Why there is nothing to build."""

    def collated_as(self, report: Report, block: Block | None) -> CollateRequest:
        """Return the request with a batch in the place of its samples."""
        return replace(self, reports=(), blocks=(), rows=None, collated=(report, block))

    def failed_with(self, error: BaseException) -> CollateRequest:
        """Return the request with an error in the place of its samples."""
        return replace(self, reports=(), blocks=(), rows=None, error=error)

    def memory(self) -> list[Block]:
        """Return all blocks in which its samples or its batch lie."""
        blocks = [*self.blocks, self.rows.block if self.rows else None, self.collated[1] if self.collated else None]
        return [block for block in blocks if block is not None]


class Collator:
    """The thread that collates."""

    def __init__(self, arena: Arena, collate: Collate, failed: Callable[[OutputQueue, BaseException], None]) -> None:
        self._arena, self._collate, self._failed = arena, collate, failed
        self.in_place = collate.in_place
        """Whether samples are collated here that lie in the rows of a batch."""
        self._given = self._done = 0
        """Requests that the thread got, and those that it is done with."""
        self._requests: queue.SimpleQueue[CollateRequest | OutputQueue | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="sample-aware-collator", daemon=True)
        self._thread.start()

    def put(self, request: CollateRequest) -> None:
        """Have a batch built, at once where a worker has collated it and nothing is before it."""
        if request.collated is not None and not self._collate.finishes and self._given == self._done:
            try:
                self._build(request)
            except BaseException as error:  # noqa: BLE001 - raised in the consumer's thread
                self._failed(request.output, error)
            return
        self._given += 1
        self._requests.put(request)

    def end(self, output: OutputQueue) -> None:
        """End the output, behind the batches that are to be built."""
        self._requests.put(output)

    def close(self) -> None:
        """End the thread; a collation that is under way has a second."""
        self._requests.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join(1.0)

    def _work(self) -> None:
        ready = False
        while (request := self._requests.get()) is not None:
            try:
                # Inside, because a thread that ends here would leave the consumer waiting without an error.
                if not ready:
                    use_one_thread()
                    be_prompt()
                    ready = True
                if isinstance(request, OutputQueue):
                    request.end()
                else:
                    self._build(request)
            except BaseException as error:  # noqa: BLE001 - raised in the consumer's thread
                output = request if isinstance(request, OutputQueue) else request.output
                self._failed(output, error)
                del error
            self._done += isinstance(request, CollateRequest)
            del request

    def _build(self, request: CollateRequest) -> None:
        if request.output.over:
            self._drop(request)
        elif request.error is not None:
            request.output.put(ReadyBatch(request.samples, request.keys, None, (), error=request.error))
        else:
            request.output.put(self._built(request))

    def _drop(self, request: CollateRequest) -> None:
        for block in request.memory():
            self._arena.returns.give_back(block, os.getpid())

    def _built(self, request: CollateRequest) -> ReadyBatch:
        rows: list[Sequence[Value]] = []
        regions: list[torch.Tensor] = []
        blocks = request.memory()
        if request.collated is not None:
            value = self._collate.finish(self._sample(*request.collated))
            return ReadyBatch(request.samples, request.keys, value, request.work_ns, blocks)
        if request.rows is not None:
            rows = self._rows(request.rows, regions)
        samples = []
        for report, block in zip(request.reports, request.blocks, strict=True):
            if report.offset == IN_ROW:
                samples.append(unpack(report.payload, [leaf[report.row] for leaf in rows]))
            else:
                samples.append(self._sample(report, block))
        with StackedInPlace(regions if self._collate.in_place else ()):
            value = self._collate(request.keys, samples, request.work_ns)
        return ReadyBatch(request.samples, request.keys, self._collate.finish(value), request.work_ns, blocks)

    def _sample(self, report: Report, block: Block | None) -> object:
        """Return a sample or a batch that lies apart; its memory comes back when nothing refers to it any more."""
        if block is None:
            return load_report(report.payload)
        return load(self._arena.view(block), report.offset - block.offset, report.nbytes, copy=False)

    def _rows(self, memory: Rows, regions: list[torch.Tensor]) -> list[Sequence[Value]]:
        """Return for each leaf what its rows are; add the tensors whose stack is there already to `regions`."""
        whole = self._arena.view(memory.block)
        begins, _ = offsets(memory.spec, memory.rows)
        found: list[Sequence[Value]] = []
        for begin, leaf in zip(begins, memory.spec, strict=True):
            region = rows_of(whole, begin, leaf, memory.rows)
            if isinstance(region, torch.Tensor):
                regions.append(region)
                found.append(region.unbind(0))
            else:
                with suppress(TypeError):  # of a type that torch does not have
                    regions.append(torch.from_numpy(region))
                found.append(list(region))
        return found


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


def be_prompt() -> None:
    """Ask for the calling thread to run soon after it is woken beside workers that use all processors.

    Since Linux 6.12 a thread of the usual policy may ask for shorter time slices, which come sooner and are no more
    processor time in all (sched(7), the EEVDF scheduler). Other kernels ignore it or refuse it, and nothing changes.
    """
    number = _SYSCALL.get(platform.machine())
    if number is None or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return
    nice = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    attributes = _ATTR.pack(_ATTR.size, os.SCHED_OTHER, 0, nice, 0, _SLICE_NS, 0, 0)
    ctypes.CDLL(None).syscall(number, 0, attributes, 0)
