"""Workers of a DataLoader agree on the epoch of their iteration, whenever each of them starts."""

from __future__ import annotations

import copy
import multiprocessing
from dataclasses import replace
from typing import Any

import pytest
import torch.utils.data._utils.worker as torch_worker

from loaders.streaming.iterations import Iterations, Worker

FIRST = Worker(0, 2, seed=77, process=1, count=0)
SECOND = replace(FIRST, id=1)


def _later(worker: Worker, *, seed: int = 78, processes: int = 2) -> Worker:
    return replace(worker, seed=seed, process=worker.process + processes)


def test_the_workers_of_an_iteration_share_its_epoch_and_those_of_the_next_one_do_not() -> None:
    iterations = Iterations()
    assert iterations.begin(FIRST).epoch == iterations.begin(SECOND).epoch == 0
    assert iterations.begin(_later(SECOND)).epoch == iterations.begin(_later(FIRST)).epoch == 1
    persistent = replace(_later(FIRST), count=1)
    assert iterations.begin(persistent).epoch == 2
    assert iterations.position().epoch == 2


def test_a_worker_of_an_iteration_that_was_left_begins_no_epoch() -> None:
    iterations = Iterations()
    assert iterations.begin(FIRST).epoch == 0
    assert iterations.begin(_later(FIRST)).epoch == 1
    late = iterations.begin(SECOND)
    assert late.epoch == 0
    assert iterations.begin(_later(SECOND)).epoch == 1
    iterations.end(late, SECOND)
    assert iterations.position().epoch == 1


def test_one_seed_for_every_dataloader_is_no_repetition() -> None:
    iterations = Iterations()
    assert iterations.begin(FIRST).epoch == 0  # left before the second worker began
    assert iterations.begin(_later(SECOND, seed=77)).epoch == 1
    assert iterations.begin(_later(FIRST, seed=77)).epoch == 1


def test_an_epoch_ends_with_its_last_worker() -> None:
    iterations = Iterations()
    both = iterations.begin(FIRST), iterations.begin(SECOND)
    iterations.end(both[0], FIRST)
    assert iterations.position().epoch == 0
    iterations.end(both[1], SECOND)
    assert iterations.position().epoch == 1
    assert iterations.begin(None).epoch == 1


def test_what_was_loaded_is_for_the_first_iteration_of_its_epoch_and_all_its_workers() -> None:
    iterations = Iterations()
    iterations.load(4, {"marks": b"x" * 10_000})
    iterations.choose(4)
    for worker in (FIRST, SECOND):
        assert iterations.begin(worker).state == {"marks": b"x" * 10_000}
    iterations.choose(4)
    again = iterations.begin(_later(FIRST))
    assert (again.epoch, again.state) == (4, None)
    iterations.load(2, {"marks": b""})
    iterations.choose(3)
    assert (iterations.begin(None).epoch, iterations.begin(None).epoch) == (3, 4)


def test_a_copy_goes_on_by_itself() -> None:
    iterations = Iterations()
    iterations.choose(3)
    other = copy.deepcopy(iterations)
    other.choose(9)
    assert (iterations.position().epoch, other.position().epoch) == (3, 9)


def _begin(iterations: Iterations, worker: bool, told: Any) -> None:
    if worker:
        torch_worker._worker_info = torch_worker.WorkerInfo(id=0, num_workers=1, seed=1, dataset=None)
    told.put(iterations.begin(iterations.worker()).epoch)


@pytest.mark.process
@pytest.mark.parametrize(
    ("method", "processes"), [("fork", [(False, 5), (True, 5), (True, 6)]), ("spawn", [(False, 5)])]
)
def test_a_worker_shares_the_position_and_another_process_has_its_own(
    method: str, processes: list[tuple[bool, int]]
) -> None:
    context: Any = multiprocessing.get_context(method)
    iterations, told = Iterations(), context.Queue()
    iterations.choose(5)
    for worker, epoch in processes:
        process = context.Process(target=_begin, args=(iterations, worker, told))
        process.start()
        assert told.get(timeout=60) == epoch
        process.join(60)
        assert iterations.position().has_started == worker
