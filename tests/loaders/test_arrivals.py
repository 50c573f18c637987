"""ArrivalLog: the bytes of each connection, counted together in short windows."""

from __future__ import annotations

import json
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from loaders.errors import LoaderConfigError
from loaders.shared.arrivals import WINDOW_S, ArrivalLog


def test_every_byte_is_noted_once_with_its_connection_and_epoch(tmp_path: Path) -> None:
    began = time.time_ns()
    with ArrivalLog(tmp_path / "events.jsonl", rank=1) as log, ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda k: log.count(k % 2, k % 3, k), range(3000)))
        time.sleep(1.5 * WINDOW_S)
        log.count(1, 7, 5)
    log.close()
    log.count(1, 7, 99)  # a row that arrives after the end
    log.close()
    lines = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    found: Counter[tuple[int, int]] = Counter()
    for line in lines:
        assert line["event"] == "arrived" and line["rank"] == 1
        assert began <= line["t_ns"] <= time.time_ns() + WINDOW_S * 1e9
        found[line["epoch"], line["connection"]] += line["bytes"]
    expected: Counter[tuple[int, int]] = Counter({(1, 7): 5})
    for k in range(3000):
        expected[k % 2, k % 3] += k
    assert found == expected
    assert len({line["t_ns"] for line in lines}) >= 2 and len(lines) < 100


def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LoaderConfigError, match=r"events cannot be written to .*nowhere"):
        ArrivalLog(tmp_path / "nowhere" / "events.jsonl")
