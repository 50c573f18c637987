"""A message that is larger than the link carries within the timeout arrives, as long as its bytes do."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from loaders.errors import StreamError
from loaders.streaming.loader import StreamingLoader

pytestmark = pytest.mark.process

RECORD_BYTES = 3_000_000
TIMEOUT_S = 1.5
_CHUNK = 2**14


@contextmanager
def _slow_link(port: int, pause_s: Callable[[int], float]) -> Iterator[str]:
    """Pass connections on to a port; wait after 16 KiB from it for as long as `pause_s` of the bytes so far says."""
    ends: list[socket.socket] = []

    def forward(source: socket.socket, sink: socket.socket, is_slow: bool) -> None:
        passed = 0
        with suppress(OSError):
            while data := source.recv(_CHUNK):
                sink.sendall(data)
                passed += len(data)
                if is_slow:
                    time.sleep(pause_s(passed))

    def accept() -> None:
        with suppress(OSError):
            while True:
                near, _ = listener.accept()
                # What is in buffers has passed the slow part already.
                near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _CHUNK)
                far = socket.create_connection(("127.0.0.1", port))
                ends.extend((near, far))
                threading.Thread(target=forward, args=(near, far, False), daemon=True).start()
                threading.Thread(target=forward, args=(far, near, True), daemon=True).start()

    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"tcp://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for end in ends:
            end.close()


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
        _slow_link(daemon.port, lambda passed: _CHUNK / 1_000_000) as endpoint,
        _loader(endpoint, warm_bytes=warm_bytes) as loader,
    ):
        began = time.monotonic()
        assert sorted(i for batch in loader.epoch(0) for i in batch.ids.tolist()) == [0, 1]
        assert time.monotonic() - began > 2 * TIMEOUT_S, "the link is not slow"
        assert loader.stats().details["asked_again"] == 0


def test_a_link_that_is_too_slow_is_named_with_its_rate_and_the_timeout(daemon: Any) -> None:
    with (
        _slow_link(daemon.port, lambda passed: 0.0 if passed < 2**20 else 0.5) as endpoint,
        _loader(endpoint) as loader,
        pytest.raises(StreamError, match=rf"timeout_s={TIMEOUT_S:g}, at [0-9.]+ kB/s") as raised,
    ):
        list(loader.epoch(0))
    rate = re.search(r"at ([0-9.]+) kB/s", str(raised.value))
    assert rate is not None and float(rate[1]) >= 0
