"""How many files are read at once where the config has `auto`: which numbers are tried, and which one is taken."""

from types import SimpleNamespace

import pytest

from harness.cell import readers as cell_readers
from harness.cell.readers import measure_rate
from harness.errors import ConfigError
from harness.results.folder import RunFolder
from harness.run import check
from harness.run.cells.readers import FoundReaders, choose_readers, find_next
from harness.run.cells.try_readers import read_found, save_found
from tests.harness.configs import experiment


def search(rate):
    """Return what a search tries, in its order, and what it takes; `rate` returns samples/s of a number of readers."""
    rates = {}
    while (number := find_next(rates)) is not None:
        rates[number] = rate(number)
    known = {number: found for number, found in rates.items() if found is not None}
    return list(rates), choose_readers(known)


@pytest.mark.parametrize(
    ("full", "tried", "taken"),
    [
        (1, [2, 4, 8, 1], 1),
        (4, [2, 4, 8, 12], 4),
        (11, [2, 4, 8, 12, 16, 24], 12),
        (20, [2, 4, 8, 12, 16, 24, 32, 48], 24),
        (100, [2, 4, 8, 12, 16, 24, 32, 48], 48),
    ],
)
def test_readers_are_added_until_the_processors_are_full(full, tried, taken):
    assert search(lambda readers: 10.0 * min(readers, full)) == (tried, taken)


def test_a_gain_of_less_than_3_percent_is_not_worth_a_reader_and_a_loss_is_none():
    assert choose_readers({2: 100.0, 4: 102.9, 8: 90.0}) == 2
    assert choose_readers({2: 100.0, 4: 103.1, 8: 90.0}) == 4


def test_one_disturbed_piece_does_not_end_the_search():
    assert search(lambda readers: 5.0 if readers == 8 else 10.0 * min(readers, 16))[1] == 16


def test_numbers_for_which_the_epoch_is_too_short_are_not_taken():
    assert search(lambda readers: None if readers > 4 else 10.0 * readers) == ([2, 4, 8], 4)


class Rounds:
    """A loader whose readers each bring a batch of 4 at the end of every round of 300 ms.

    Their start takes 5 s, and the last two rounds come at once.
    """

    def __init__(self, clock, readers, rounds):
        self._clock, self._readers, self._rounds = clock, readers, rounds

    def epoch(self, epoch):
        self._clock["ns"] += 5_000_000_000
        for number in range(self._rounds):
            self._clock["ns"] += 300_000_000 if number < self._rounds - 2 else 0
            yield from [SimpleNamespace(ids=range(4))] * self._readers


@pytest.mark.parametrize("readers", [1, 3, 7])
@pytest.mark.parametrize(("rounds", "is_long"), [(3, False), (4, False), (5, True), (9, True)])
def test_a_rate_is_of_rounds_in_which_no_worker_starts_and_all_read_ahead(monkeypatch, readers, rounds, is_long):
    clock = {"ns": 0}
    monkeypatch.setattr(cell_readers.time, "monotonic_ns", lambda: clock["ns"])
    loader = Rounds(clock, readers, rounds)
    found = measure_rate(loader, lambda batch: None, readers, 1, rounds * readers)
    assert found == (pytest.approx(readers * 4 / 0.3) if is_long else None)


def test_what_was_found_is_read_by_a_run_that_is_resumed(tmp_path):
    folder = RunFolder(tmp_path)
    assert read_found(folder) == {}
    found = {"pytorch resnet50 wan_30ms": FoundReaders(12, {8: 70.0, 12: 100.5}, is_whole=False)}
    save_found(folder, found)
    assert read_found(folder) == found
    said = found["pytorch resnet50 wan_30ms"].describe("wan_30ms")
    assert said.startswith("12 files are read at once in wan_30ms")
    assert "more may be quicker" in said


def test_a_number_is_found_for_loaders_of_files_and_one_rank_alone():
    loader = experiment("+experiment=wan30ms").loaders["dali"]
    assert loader.finds_readers
    assert loader.read_with(7).params["read_threads"] == 7
    assert not experiment("+experiment=wan30ms", "loaders.dali.read_threads=7").loaders["dali"].finds_readers
    with pytest.raises(ConfigError, match=r"num_workers=auto: .*2 ranks"):
        experiment("+experiment=wan30ms", "distributed.world_size=2")
    with pytest.raises(ConfigError, match=r"streaming\.num_threads=auto: expected a number"):
        experiment(
            "+experiment=wan30ms", "+loaders.streaming.readers=num_threads", "loaders.streaming.num_threads=auto"
        )


def test_a_loader_is_tried_with_one_reader_where_the_number_is_to_be_found():
    """SPDL's coroutines cannot be without a stage that reads."""
    loader = experiment("+experiment=emlio_fig5").loaders["spdl_stages"]
    assert loader.finds_readers
    assert check._tried(loader).params["read_concurrency"] == 1
