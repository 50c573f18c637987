from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest

from loaders.errors import LoaderConfigError
from loaders.streaming.timestamps import EpochMarks, TimestampLogger


def _read(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_events_are_lines_with_the_utc_time_and_who_noted_them(tmp_path: Path) -> None:
    path = tmp_path / "events"
    before = time.time_ns()
    with TimestampLogger(path, rank=3) as log:
        log.log("epoch_start", epoch=1)
        log.log("batch_received", epoch=1, batch=7, nbytes=1000)
    start, batch = _read(path)
    assert before <= int(str(start.pop("t_ns"))) <= int(str(batch.pop("t_ns"))) <= time.time_ns()
    assert start == {"event": "epoch_start", "epoch": 1, "rank": 3}
    assert batch == {"event": "batch_received", "epoch": 1, "batch": 7, "bytes": 1000, "rank": 3}


def test_what_was_noted_is_written_at_the_end_of_an_epoch(tmp_path: Path) -> None:
    path = tmp_path / "events"
    with TimestampLogger(path) as log:
        log.log("batch_received", epoch=0, batch=0, nbytes=1)
        assert path.read_text() == ""
        log.log("epoch_end", epoch=0)
        assert [event["event"] for event in _read(path)] == ["batch_received", "epoch_end"]


def test_threads_lose_none_and_tear_none(tmp_path: Path) -> None:
    with TimestampLogger(tmp_path / "events") as log:

        def note(rank: int) -> None:
            for batch in range(5000):
                log.log("batch_received" if batch % 97 else "epoch_end", epoch=rank, batch=batch)

        threads = [threading.Thread(target=note, args=(rank,)) for rank in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = sorted((event["epoch"], event["batch"]) for event in _read(tmp_path / "events"))
    assert found == [(rank, batch) for rank in range(4) for batch in range(5000)]


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(LoaderConfigError, match=r"/gone/events"):
        TimestampLogger(tmp_path / "gone" / "events")


def test_the_sender_marks_epochs_by_what_it_sends(tmp_path: Path) -> None:
    log = TimestampLogger(tmp_path / "events")
    marks = EpochMarks(log, samples=10)
    for epoch, batch, records in ((0, 0, 6), (1, 0, 6), (0, 1, 4), (1, 1, 3), (0, 0, 6)):
        marks.sent(epoch, batch, records, 1)
    marks.close()
    log.close()
    told = [(event["event"], event["epoch"]) for event in _read(tmp_path / "events") if event["event"] != "batch_sent"]
    assert told == [
        ("epoch_start", 0),
        ("epoch_start", 1),
        ("epoch_end", 0),
        ("epoch_start", 0),
        ("epoch_end", 1),
        ("epoch_end", 0),
    ]
