"""The ranks of a cell: processes that train one model together, in a process group of torch.distributed."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from harness.cell.messages import RankSpec
from harness.errors import CellError

if TYPE_CHECKING:
    import torch


_VARIABLES: Final = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
"""What torchrun sets in the environment of a rank."""
_BACKLOG: Final = 128


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process's place in the process group, and what it agrees on with the other ranks."""

    rank: int
    world_size: int
    steps: int | None = None
    """What every rank makes in an epoch; None until the ranks have agreed."""

    def wait(self) -> None:
        """Wait until every rank is here. Raises RuntimeError when a rank is lost."""
        self._greatest(0)

    def agree(self, own: int) -> Ranks:
        """Return the same with the greatest number of steps that a rank needs; raises RuntimeError as `wait` does."""
        return replace(self, steps=self._greatest(own))

    def _greatest(self, value: int) -> int:
        import torch

        found: torch.Tensor = torch.tensor([value], dtype=torch.int64)
        torch.distributed.all_reduce(found, op=torch.distributed.ReduceOp.MAX)
        return int(found.item())


@contextmanager
def joined(spec: RankSpec, device: str, tell_port: Callable[[int], None]) -> Iterator[Ranks]:
    """Join the process group that a cell's spec describes, and leave it when the context ends without an error.

    Rank 0 serves the c10d store, on its address alone, and `tell_port` gets the port. Traffic between ranks uses the
    interface of the spec alone. The variables of torchrun are set, for libraries that read them.

    Raises CellError when the store or a rank cannot be reached in time, or where nccl lacks a GPU.
    """
    import torch.distributed as dist
    from torch._C._distributed_c10d import TCPStore

    os.environ |= {"GLOO_SOCKET_IFNAME": spec.interface, "NCCL_SOCKET_IFNAME": spec.interface}
    timeout, port, listener = timedelta(seconds=spec.timeout_s), spec.port, None
    backend = choose_backend(spec.backend, device)
    _take_device(device, backend, spec.local_rank, spec.local_world_size)
    if spec.rank == 0:
        listener = socket.create_server((spec.address, 0), backlog=_BACKLOG)
        port = listener.getsockname()[1]
    values = (spec.rank, spec.world_size, spec.local_rank, spec.address, port)
    os.environ |= {name: str(value) for name, value in zip(_VARIABLES, values, strict=True)}
    try:
        store = TCPStore(
            spec.address,
            port,
            spec.world_size,
            is_master=listener is not None,
            timeout=timeout,
            wait_for_workers=False,
            # torch itself would listen on every address of the host.
            master_listen_fd=None if listener is None else listener.detach(),
        )
        if spec.rank == 0:
            tell_port(port)
        dist.init_process_group(backend, store=store, rank=spec.rank, world_size=spec.world_size, timeout=timeout)
    except (RuntimeError, ValueError) as error:
        raise CellError(f"rank {spec.rank} cannot join the others at {spec.address}:{port}: {error}") from error
    yield Ranks(spec.rank, spec.world_size)
    # After an error the process ends: a rank that is lost would be waited for here.
    dist.destroy_process_group()


def choose_backend(backend: str, device: str) -> str:
    """Return torch's name of a backend for batches on a device; small numbers on the CPU always go through gloo.

    Raises CellError for nccl without a GPU.
    """
    if backend == "nccl" and device != "cuda":
        raise CellError(f"distributed.backend=nccl: batches are on the {device}; use gloo")
    return "cpu:gloo,cuda:nccl" if device == "cuda" and backend != "gloo" else "gloo"


def _take_device(device: str, backend: str, local_rank: int, local_world_size: int) -> None:
    """Let this rank train on a GPU of its own, or on one that ranks share where gloo synchronises them."""
    import torch

    if device != "cuda":
        return
    count = torch.cuda.device_count()
    if "nccl" in backend and local_world_size > count:
        raise CellError(
            f"{local_world_size} ranks on a host with {count} GPUs: nccl needs a GPU for each; set "
            "distributed.backend=gloo, or a smaller distributed.world_size"
        )
    torch.cuda.set_device(local_rank % count)
