"""The worker processes: started, counted, asked to stop, and named when one dies."""

from __future__ import annotations

import os
import pickle
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Final

from loaders.errors import LoaderConfigError, WorkerError
from loaders.sample_aware.ipc.messages import TASK_BYTES, TaskKind, TaskRecord
from loaders.sample_aware.workers.jobs import SampleJob, WorkerPlace
from loaders.sample_aware.workers.worker import Descriptor, WorkerEnds, run_worker
from loaders.shared.threads import gc_frozen

_GRACE_S: Final = 0.2
"""How long an idle worker may take to stop; one that is at work is ended then."""
_ANSWER: Final = struct.Struct("<q")
_LOOK: Final = TaskRecord(TaskKind.LOOK).pack()
_STOP: Final = TaskRecord(TaskKind.STOP).pack()


@dataclass(slots=True)
class _Member:
    process: BaseProcess
    answers: int
    alive: int
    """A pidfd, readable from the process's end on."""
    retired: bool = False


class Pool:
    """Processes that share a pipe of tasks, a pipe of batches to collate and a pipe of reports.

    `start` belongs to a thread of the consumer's, all else to the coordinator.
    """

    def __init__(self, job: SampleJob, context: BaseContext, arena: int) -> None:
        self._job, self._context, self._arena = job, context, arena
        self._tasks_out, self._tasks = os.pipe()
        self._collations_out, self._collations = os.pipe()
        os.set_blocking(self._collations_out, False)
        self.reports, self._reports_in = os.pipe()
        self._tasks_back = _twin(self._tasks_out)
        self._members: dict[int, _Member] = {}
        self.processes: list[BaseProcess] = []
        """The workers that were not asked to stop, and where they have all ended those that were the last."""
        self._made = self._working = 0
        self._closed = False

    def __len__(self) -> int:
        """Return the number of workers that were not asked to stop."""
        return self._working

    def pid(self, worker: int) -> int:
        """Return a worker's process id."""
        return self._members[worker].process.pid or 0

    def start(self, workers: int) -> tuple[int, int]:
        """Start one more worker; return its number and its pidfd. `get_worker_info` shows `workers` as their number.

        Raises LoaderConfigError where the start method has to pickle what does not pickle.
        """
        worker, (answers_out, answers) = self._made, os.pipe()
        ends = WorkerEnds(
            Descriptor(self._tasks_out),
            Descriptor(self._collations_out),
            Descriptor(self._reports_in),
            Descriptor(answers_out),
            Descriptor(self._arena),
            os.getpid(),
        )
        process = self._context.Process(  # type: ignore[attr-defined]
            target=run_worker,
            args=(ends, self._job, WorkerPlace(worker, workers)),
            name=f"sample-aware-{worker}",
            daemon=True,
        )
        try:
            with gc_frozen():
                process.start()
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            os.close(answers)
            method = self._context.get_start_method()
            raise LoaderConfigError(
                f"the start method {method} pickles the dataset, its transforms and collate_fn, and one of these does "
                f"not pickle: {error}; define it at the top of a module, or start the workers by fork"
            ) from error
        finally:
            os.close(answers_out)
        self._made += 1
        self._working += 1
        alive = os.pidfd_open(process.pid)
        self._members[worker] = _Member(process, answers, alive)
        self.processes.append(process)
        return worker, alive

    def give(self, records: Sequence[bytes]) -> None:
        """Put tasks into the pipe, for the next idle worker."""
        _write_all(self._tasks, records)

    def give_collations(self, records: Sequence[bytes]) -> None:
        """Have batches collated that are done but for that, before other tasks."""
        _write_all(self._collations, records)
        # For workers that wait for a task already.
        _write_all(self._tasks, [_LOOK] * len(records))

    def answer(self, worker: int, offset: int) -> None:
        """Send a worker the offset of its block."""
        os.write(self._members[worker].answers, _ANSWER.pack(offset))

    def recall(self) -> list[TaskRecord]:
        """Take back the tasks that no worker has taken."""
        records = [*_drain(self._tasks_back), *_drain(self._collations_out)]
        self.give([record for record in records if record == _STOP])
        tasks = map(TaskRecord.unpack, records)
        return [task for task in tasks if task.kind == TaskKind.WORK]

    def shrink(self) -> None:
        """Ask whichever worker is idle first to stop."""
        self._working -= 1
        self.give([_STOP])

    def retire(self, worker: int) -> None:
        """Note that a worker has stopped as it was asked to."""
        self._members[worker].retired = True

    def ended(self, worker: int) -> WorkerError | None:
        """Forget a worker whose pidfd is readable; return the error that names it where it was not asked to stop."""
        member = self._members[worker]
        member.process.join()
        code = member.process.exitcode
        if member.retired:
            self.processes.remove(member.process)
            self._forget(worker)
            return None
        end = f"was killed by signal {-code}" if code is not None and code < 0 else f"exited with status {code}"
        return WorkerError(f"the sample-aware loader's worker {worker} (pid {member.process.pid}) {end}")

    def close(self) -> None:
        """End all workers, in the middle of a transform too."""
        if self._closed:
            return
        self._closed = True
        members = list(self._members.values())
        with suppress(OSError):
            self.give([_STOP] * min(len(members), 256))
        deadline = time.monotonic() + _GRACE_S
        for end in ("terminate", "kill"):
            for member in members:
                member.process.join(max(0.0, deadline - time.monotonic()))
                if member.process.is_alive():
                    getattr(member.process, end)()
            deadline = time.monotonic() + _GRACE_S
        for worker, member in list(self._members.items()):
            member.process.join()
            self._forget(worker)
        for descriptor in (
            self._tasks, self._tasks_out, self._tasks_back, self._collations, self._collations_out,
            self.reports, self._reports_in,
        ):  # fmt: skip
            os.close(descriptor)

    def _forget(self, worker: int) -> None:
        member = self._members.pop(worker)
        os.close(member.answers)
        os.close(member.alive)


def _write_all(descriptor: int, records: Sequence[bytes]) -> None:
    # Several at once, as long as they go in whole.
    for first in range(0, len(records), 32):
        os.write(descriptor, b"".join(records[first : first + 32]))


def _twin(descriptor: int) -> int:
    """Open the reading end of a pipe once more, for reads that do not wait; that is a setting of each opening."""
    return os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)


def _drain(descriptor: int) -> list[bytes]:
    """Read what is there, in competition with the workers: whole records, as they read them."""
    found = []
    with suppress(BlockingIOError):
        while record := os.read(descriptor, TASK_BYTES):
            found.append(record)
    return found
