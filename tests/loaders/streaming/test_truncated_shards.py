"""A shard that becomes shorter while it is served costs its own records and nothing else."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from loaders.errors import StreamError
from loaders.records.planner import BatchPlan, Slice
from loaders.streaming import StreamClient

pytestmark = pytest.mark.process


def _endless(client: StreamClient) -> Iterator[BatchPlan]:
    for epoch in count():
        yield from client.plan(epoch=epoch, batch_size=32, seed=0)


@pytest.mark.parametrize("size", [2_000, 100_000])
@pytest.mark.parametrize("with_keys", [False, True])
def test_the_client_gets_its_name_and_the_others_are_served(
    start_daemon: Callable[..., object],
    make_shards: Callable[..., Path],
    keys: Path,
    tmp_path: Path,
    size: int,
    with_keys: bool,
) -> None:
    """The page is touched by ZeroMQ's thread: to copy small records, to encrypt, or within a system call."""
    root = make_shards(tmp_path, shards=3, records=200, size=size)
    options = ["--keys", str(keys / "daemon")] if with_keys else []
    daemon = start_daemon(root, options=options, log=tmp_path / "log")
    with StreamClient(
        daemon.endpoint,  # type: ignore[attr-defined]
        streams=2,
        timeout_s=20,
        keys=keys / "client" if with_keys else None,
    ) as client:
        with pytest.raises(StreamError, match=r"shard-1\.tfrecord"):
            for number, _ in enumerate(client.fetch(_endless(client), window=16)):
                if number == 20:
                    os.truncate(root / "shard-1.tfrecord", 5_000)
                assert number < 5_000
        others = [BatchPlan(0, batch, (Slice(0, 8 * batch, 8), Slice(2, 8 * batch, 8))) for batch in range(25)]
        assert sorted(sample for batch in client.fetch(others, window=8) for sample in batch.ids.tolist()) == [
            *range(200),
            *range(400, 600),
        ]
    assert daemon.stop() == 0  # type: ignore[attr-defined]
    events = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines() if line.startswith("{")]
    named = [event for event in events if event["event"] in ("fault", "unreadable")]
    assert named and all("shard-1.tfrecord" in json.dumps(event) for event in named)


def test_a_daemon_whose_shards_are_truncated_one_after_the_other_goes_on(
    start_daemon: Callable[..., object], make_shards: Callable[..., Path], tmp_path: Path
) -> None:
    root = make_shards(tmp_path, shards=4, records=200, size=20_000)
    daemon = start_daemon(root)
    with StreamClient(daemon.endpoint, streams=2, timeout_s=20) as client:  # type: ignore[attr-defined]
        for shard in range(3):
            plans = (BatchPlan(0, batch, (Slice(shard, 8 * (batch % 25), 8), Slice(3, 0, 8))) for batch in count())
            with pytest.raises(StreamError, match=rf"shard-{shard}\.tfrecord"):
                for number, _ in enumerate(client.fetch(plans, window=16)):
                    if number == 20:
                        os.truncate(root / f"shard-{shard}.tfrecord", 100)
                    assert number < 5_000
        last = [BatchPlan(0, batch, (Slice(3, 8 * batch, 8),)) for batch in range(25)]
        assert sum(len(batch) for batch in client.fetch(last, window=4)) == 200


def test_a_port_is_free_for_the_next_daemon_once_one_was_killed(
    start_daemon: Callable[..., object], large_shards: Path
) -> None:
    daemon = start_daemon(large_shards)
    daemon.process.kill()  # type: ignore[attr-defined]
    again = start_daemon(large_shards, port=daemon.port)  # type: ignore[attr-defined]
    with StreamClient(again.endpoint, streams=1, timeout_s=10) as client:  # type: ignore[attr-defined]
        assert len(client.catalog.shard_records) == 4
