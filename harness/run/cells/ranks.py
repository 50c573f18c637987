"""The driver's end of a cell's processes, one a rank: they are started, spoken to and ended as one."""

from __future__ import annotations

import re
import select
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Self

from harness.cell.messages import CellSpec, CellState
from harness.errors import CellError
from harness.run.cells.process import CellProcess, ProcessEnded
from harness.run.cells.rank_files import folder_there
from harness.run.cells.template import Templates
from harness.run.prepare import python_of
from harness.testbed.base import Node
from harness.testbed.hosts.connection import LOST

_LOOK_S: Final = 1.0
_SETTLE_S: Final = 3.0
"""For how long after the first rank has failed the others are heard: one of them may be the cause."""
_LOST_S: Final = 0.25
"""How often it is asked whether the host of a rank that has ended is lost."""
_CONSEQUENCE: Final = re.compile("gloo|nccl|TCPStore|ProcessGroup|[Cc]onnection (closed|reset)|socket", re.IGNORECASE)
"""What a rank says when it has lost another one."""
_SUMMED: Final = ("batches", "samples", "bytes")


class CellRanks:
    """The processes of a cell, by rank; all are ended with their workers when the context is left."""

    def __init__(
        self,
        nodes: Sequence[Node],
        folders: Sequence[Path],
        stall_s: float,
        templates: Templates,
        environment: str | None = None,
    ) -> None:
        """Start a process on the node of each rank, with a log in its folder; all may say nothing for `stall_s`.

        Those that can be are forked from `templates`; they run in the Python of `environment`, or in the harness's own.
        """
        self._nodes, self._stall_s = nodes, stall_s
        self._logs = [folder / "log.txt" for folder in folders]
        self._states: list[deque[CellState]] = [deque() for _ in nodes]
        self._done: set[int] = set()
        self._samples = [0] * len(nodes)
        self._specs: Sequence[CellSpec] = ()
        with ExitStack() as stack:
            self._processes = [
                stack.enter_context(CellProcess(node, log, python_of(environment), templates))
                for node, log in zip(nodes, self._logs, strict=True)
            ]
            self._stack = stack.pop_all()

    @property
    def pids(self) -> tuple[int, ...]:
        """The ids of the processes on this host, by rank."""
        ours = zip(self._processes, self._nodes, strict=True)
        return tuple(process.pid for process, node in ours if not node.is_remote)

    @property
    def templates(self) -> set[int]:
        """The ids of the processes that those on this host were forked from."""
        return {process.template for process in self._processes if process.template is not None}

    def start(self, specs: Sequence[CellSpec]) -> None:
        """Send each rank its spec: rank 0 at once, the others when it has said where they meet."""
        self._specs = specs
        self._processes[0].send(specs[0])

    def send(self, message: Mapping[str, object]) -> None:
        """Send one line to every rank. Raises CellError when one is gone."""
        for rank, process in enumerate(self._processes):
            try:
                process.send(message)
            except CellError as error:
                raise self._failure({rank: error}, lambda: None) from error

    def fetch_files(self) -> None:
        """Bring what ranks on other hosts, which are done, have written. Raises CellError or TestbedError."""
        for rank, node in enumerate(self._nodes):
            if node.is_remote:
                self._processes[rank].wait_ended()
                node.fetch(folder_there(node, rank) / "out", self._logs[rank].parent)

    def receive(self, deadline: float, doing: str, check: Callable[[], None] = lambda: None) -> CellState:
        """Return the next state that all ranks have reached, or the progress of one; samples count all ranks.

        They are `doing` something for it, such as "importing its modules". While it waits it calls `check` every
        second, which raises what makes waiting useless.

        Raises CellError, which names the rank of several and its host, when one failed, died, is past `deadline`
        (`time.monotonic()`), or when all are silent for too long.
        """
        heard = time.monotonic()
        while True:
            for rank, process in enumerate(self._processes):
                try:
                    # A rank that is done ends; what it says no more is no failure.
                    state = None if rank in self._done else process.take()
                except CellError as error:
                    raise self._failure({rank: error}, check) from error
                if state is not None:
                    heard = time.monotonic()
                    self._note(rank, state)
                    if state.state == "progress":
                        return replace(state, samples=sum(self._samples))
            if all(self._states):
                return self._together([states.popleft() for states in self._states])
            now = time.monotonic()
            if now >= deadline:
                raise CellError(f"took longer than cell_timeout_s while {doing}; raise it, or look at {self._logs[0]}")
            if now >= heard + self._stall_s:
                raise CellError(
                    f"no progress for {self._stall_s / 60:.3g} min (cell_stall_min) while {doing}: {self._places()}; "
                    f"{self._logs[0]} has the stacks of its threads"
                )
            self._wait(min(_LOOK_S, deadline - now, heard + self._stall_s - now), self._done)
            check()

    def _note(self, rank: int, state: CellState) -> None:
        if state.state == "store":
            for other, process in enumerate(self._processes[1:], 1):
                place = self._specs[other].ranks
                assert place is not None, "a cell of several ranks"
                process.send(replace(self._specs[other], ranks=replace(place, port=state.port)))
        elif state.state == "progress":
            self._samples[rank] = state.samples
        else:
            # A rank may be a state ahead of another one.
            self._states[rank].append(state)
            self._samples[rank] = 0
            self._done |= {rank} if state.state == "done" else set()

    @staticmethod
    def _together(states: Sequence[CellState]) -> CellState:
        if len(states) == 1:
            return states[0]
        if len({(state.state, state.epoch) for state in states}) > 1:
            found = ", ".join(f"rank {rank}: {state.state}" for rank, state in enumerate(states))
            raise CellError(f"the ranks are not in step ({found}); expected one state of all")
        stats = dict(states[0].stats)
        stats |= {key: sum(int(str(one.stats[key])) for one in states) for key in _SUMMED if key in stats}
        accelerator = states[0].accelerator
        if accelerator is not None:
            boards = [board for one in states if one.accelerator for board in one.accelerator.boards or ()]
            accelerator = replace(accelerator, boards=list(dict.fromkeys(boards)))
        samples = sum(one.samples for one in states)
        gpus = list(dict.fromkeys(gpu for one in states for gpu in one.gpus))
        return replace(states[0], samples=samples, stats=stats, accelerator=accelerator, gpus=gpus)

    def _wait(self, timeout_s: float, but: Collection[int]) -> None:
        poller = select.poll()
        for rank, process in enumerate(self._processes):
            if rank not in but:
                poller.register(process.output_fd, select.POLLIN)
        poller.poll(1e3 * max(0.0, timeout_s))

    def _failure(self, failed: dict[int, CellError], check: Callable[[], None]) -> CellError:
        """Return the error of the rank that is the cause: the others fail because they have lost it.

        `check` raises where the cause is a host that is lost, which is known a moment after its rank's end.
        """
        if len(self._processes) == 1:
            return failed[0]
        deadline = time.monotonic() + _SETTLE_S
        while time.monotonic() < deadline:
            check()
            is_known = len(failed) == len(self._processes) or any(map(_is_cause, failed.values()))
            if is_known and not any(map(self._may_be_lost, failed)):
                break
            self._wait(min(_LOST_S, deadline - time.monotonic()), failed)
            for rank, process in enumerate(self._processes):
                try:
                    while rank not in failed and process.take() is not None:
                        pass
                except CellError as error:
                    failed[rank] = error
        rank = next((rank for rank, error in failed.items() if _is_cause(error)), next(iter(failed)))
        return CellError(f"{self._name(rank)}: {failed[rank]}; see {self._logs[rank]}")

    def _may_be_lost(self, rank: int) -> bool:
        return self._nodes[rank].is_remote and self._processes[rank].status == LOST

    def _name(self, rank: int) -> str:
        return f"rank {rank} of {len(self._nodes)} on {self._nodes[rank].host} ({self._nodes[rank].address})"

    def _places(self) -> str:
        if len(self._processes) == 1:
            return self._processes[0].place()
        return "; ".join(f"{self._name(rank)}: {one.place()}" for rank, one in enumerate(self._processes))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *of: Any) -> None:
        self._stack.__exit__(*of)


def _is_cause(error: CellError) -> bool:
    return isinstance(error, ProcessEnded) or not _CONSEQUENCE.search(str(error))
