"""Calls that wait for storage, many at a time."""

import threading
import time

import pytest

from harness.datasets.scan import in_threads


def test_results_stand_in_the_order_of_the_items_and_every_one_is_heard_of():
    heard = []
    assert in_threads(lambda n: (time.sleep((40 - n) / 10_000), n)[1], range(40), heard.append) == list(range(40))
    assert heard == list(range(1, 41))


def test_calls_wait_at_the_same_time():
    met = threading.Barrier(8, timeout=10)
    assert len(in_threads(lambda _: met.wait(), range(8))) == 8


@pytest.mark.parametrize("where", ["call", "listener"])
def test_what_is_raised_ends_it_and_calls_that_have_not_begun_are_dropped(where):
    begun = []

    def call(number):
        begun.append(number)
        time.sleep(0.001)
        if where == "call" and number == 3:
            raise OSError("gone")

    def listen(done):
        if where == "listener" and done == 3:
            raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        in_threads(call, range(2_000), listen)
    assert len(begun) < 1000
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("in-threads")]
