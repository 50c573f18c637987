"""A message that is larger than the link carries within the timeout arrives, as long as its bytes do."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loaders.errors import StreamError
from loaders.streaming.loader import StreamingLoader
from tests.loaders.streaming.relay import Relay, Stream

pytestmark = pytest.mark.process

RECORD_BYTES = 3_000_000
TIMEOUT_S = 1.5
_CHUNK = 2**14


def _slow_link(port: int, pause_s: Callable[[int], float]) -> Relay:
    """Wait before each 16 KiB from a daemon for as long as `pause_s` of the bytes so far says."""
    passed: Counter[Stream] = Counter()

    def wait(stream: Stream, data: bytearray) -> None:
        if stream[1] == "daemon":
            time.sleep(pause_s(passed[stream]))
            passed[stream] += len(data)

    return Relay(port, piece=_CHUNK, on_piece=wait)


@pytest.fixture(scope="module")
def shards(make_shards: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_shards(tmp_path_factory.mktemp("large"), shards=1, records=2, size=RECORD_BYTES)


def _loader(endpoint: str, **arguments: Any) -> StreamingLoader:
    own = {"decode": "raw", "batch_size": 1, "seed": 0, "streams": 1, "timeout_s": TIMEOUT_S, "warm_bytes": 0}
    return StreamingLoader(endpoint=endpoint, prefetch_batches=1, **(own | arguments))


@pytest.mark.slow
@pytest.mark.parametrize("warm_bytes", [0, RECORD_BYTES])
def test_a_message_arrives_that_takes_longer_than_the_timeout(daemon: Any, warm_bytes: int) -> None:
    with (
        _slow_link(daemon.port, lambda passed: _CHUNK / 1_000_000) as relay,
        _loader(relay.endpoint, warm_bytes=warm_bytes) as loader,
    ):
        began = time.monotonic()
        assert sorted(i for batch in loader.epoch(0) for i in batch.ids.tolist()) == [0, 1]
        assert time.monotonic() - began > 2 * TIMEOUT_S, "the link is not slow"
        assert loader.stats().details["asked_again"] == 0


def test_a_link_that_is_too_slow_is_named_with_its_rate_and_the_timeout(daemon: Any) -> None:
    with (
        _slow_link(daemon.port, lambda passed: 0.0 if passed < 2**20 else 0.5) as relay,
        _loader(relay.endpoint) as loader,
        pytest.raises(StreamError, match=rf"timeout_s={TIMEOUT_S:g}, at [0-9.]+ kB/s") as raised,
    ):
        list(loader.epoch(0))
    rate = re.search(r"at ([0-9.]+) kB/s", str(raised.value))
    assert rate is not None and float(rate[1]) >= 0
