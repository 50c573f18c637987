"""A daemon on either loopback address is reached by the name localhost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loaders.errors import StreamError
from loaders.streaming.loader import StreamingLoader
from loaders.streaming.receiver.session import health

pytestmark = pytest.mark.process


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_localhost_is_both_loopback_addresses(shards: Path, start_daemon: Callable[..., Any], host: str) -> None:
    daemon = start_daemon(shards, options=["--listen", f"{host}:0"])
    assert daemon.endpoint == f"tcp://{host}:{daemon.port}"
    endpoint = f"tcp://localhost:{daemon.port}"
    assert health(endpoint, timeout_s=10)["clients"]
    with StreamingLoader(endpoint=endpoint, decode="raw", batch_size=8, seed=0, warm_bytes=0, timeout_s=10) as loader:
        ids = [sample_id for batch in loader.epoch(0) for sample_id in batch.ids.tolist()]
    assert sorted(ids) == list(range(61))


def test_an_error_names_localhost_as_it_was_given() -> None:
    with pytest.raises(StreamError, match=r"^tcp://localhost:9: no answer within timeout_s=1"):
        health("tcp://localhost:9", timeout_s=1.0)
