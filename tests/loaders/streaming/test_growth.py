"""What "auto" learns of a link: more connections while they carry more, and as many batches ahead as it needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from loaders.errors import LoaderConfigError
from loaders.streaming import StreamingLoader
from loaders.streaming.receiver import growth
from loaders.streaming.receiver.growth import AUTO_MAX_STREAMS, AUTO_MIN_STREAMS, MAX_PREFETCH, Growth, Window


class _Link:
    """A clock and the counters of a client, over a link that carries so many bytes a second by so many streams."""

    def __init__(self, carries: Callable[[int], float], *, waited: float = 1.0) -> None:
        self.growth, self.carries, self._waited = Growth(0.057), carries, waited
        self._now, self._bytes, self._answers, self._wait_s = 100.0, 0.0, 0, 0.0
        self.history = [AUTO_MIN_STREAMS]

    def run(self, seconds: float) -> int:
        """Let time pass; return the number of streams then."""
        for _ in range(round(seconds / 0.01)):
            self._now += 0.01
            self._bytes += 0.01 * self.carries(self.growth.streams)
            self._answers += self.growth.streams
            self._wait_s += 0.01 * self._waited
            if self.growth.measure(self._now, round(self._bytes), self._answers, self._wait_s):
                self.history.append(self.growth.streams)
        return self.growth.streams


def test_streams_double_while_they_carry_more_and_not_beyond_what_is_stated() -> None:
    link = _Link(lambda streams: 1e6 * streams)
    assert link.run(60) == AUTO_MAX_STREAMS
    assert link.history == [2, 4, 8, 16, 32]
    assert link.growth.goodput[16] == pytest.approx(16e6, rel=0.1)


def test_streams_stay_where_twice_as_many_carried_no_more() -> None:
    link = _Link(lambda _: 125e6)
    assert link.run(60) == 4
    assert list(link.growth.goodput) == [2, 4]


def test_more_streams_are_tried_again_when_far_less_comes() -> None:
    link = _Link(lambda _: 125e6)
    link.run(20)
    link.carries = lambda streams: 2e6 * min(streams, 8)
    assert link.run(60) == 16


def test_no_streams_are_made_where_the_network_is_not_what_is_waited_for() -> None:
    assert _Link(lambda streams: 1e6 * streams, waited=0.2).run(60) == AUTO_MIN_STREAMS


def _learn(rtt_s: float, carries: float, batch_bytes: int, *, streams: int = 2) -> int:
    """Return the window after 10 s on a link of so many bytes a second."""
    window, now, nbytes, batches = Window(rtt_s, 1, streams), 100.0, 0.0, 0
    while now < 110:
        rate = min(carries, window.batches * batch_bytes / rtt_s)
        passed = max(rtt_s, 0.01)
        now, nbytes = now + passed, nbytes + rate * passed
        batches = round(nbytes / batch_bytes)
        window.measure(now, round(nbytes), batches)
    return window.batches


@pytest.mark.parametrize("batch_bytes", [100_000, 3_200_000])
@pytest.mark.parametrize("rtt_s", [0.0001, 0.03, 0.15])
def test_as_many_batches_are_asked_for_ahead_as_the_link_needs(rtt_s: float, batch_bytes: int) -> None:
    window, product = _learn(rtt_s, 125e6, batch_bytes), 125e6 * rtt_s
    assert window == MAX_PREFETCH or product < window * batch_bytes < 2.2 * product + 8 * 3_200_000
    assert window * batch_bytes >= min(1.9 * product, MAX_PREFETCH * batch_bytes)


def test_large_batches_near_by_are_two_a_stream_and_small_ones_more() -> None:
    assert [_learn(0.0001, 1e9, 16_000_000, streams=streams) for streams in (1, 2, 8)] == [3, 4, 16]
    assert [_learn(0.0001, 1e9, 3_200_000, streams=streams) for streams in (1, 2, 8)] == [8, 8, 16]
    assert _learn(0.0001, 1e8, 10_000) >= 8


def test_batches_ahead_of_a_fast_far_link_have_a_bounded_memory() -> None:
    assert _learn(0.15, 5e9, 16_000_000) * 16_000_000 < 600e6


@pytest.mark.process
def test_streams_that_are_made_within_epochs_lose_and_repeat_nothing(
    start_daemon: Callable[..., object], large_shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("_GAIN", 0.0), ("_SPAN_S", 0.0), ("_SPAN_RTTS", 0), ("_SETTLE_RTTS", 0), ("_WAITED", 0.0)):
        monkeypatch.setattr(growth, name, value)
    daemon = start_daemon(large_shards, options=["--congestion", "reno"])
    endpoint: str = daemon.endpoint  # type: ignore[attr-defined]
    with StreamingLoader(endpoint=endpoint, batch_size=32, seed=1, decode="raw", streams="auto") as loader:
        for epoch in range(20):
            seen = Counter(one for batch in loader.epoch(epoch) for one in batch.ids.tolist())
            assert len(seen) == len(loader) and set(seen.values()) == {1}
            if loader.stats().details["streams"] == AUTO_MAX_STREAMS:
                break
        assert loader.stats().details["streams"] == AUTO_MAX_STREAMS
        assert all(part in loader.notes[-1] for part in ("32 streams", "reno", "streams=auto", "batches ahead"))


@pytest.mark.parametrize("streams", [0, 65, "many", 2.5])
def test_a_number_of_streams_that_cannot_be_is_refused(streams: object) -> None:
    with pytest.raises(LoaderConfigError, match="streams="):
        StreamingLoader(
            endpoint="tcp://127.0.0.1:1",
            batch_size=1,
            seed=0,
            decode="raw",
            streams=streams,  # type: ignore[arg-type]
        )
