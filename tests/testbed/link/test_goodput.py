from __future__ import annotations

import contextlib
import socket

import pytest

from harness.testbed.base import Node
from harness.testbed.link.measure.goodput import BIN_NS, drain, flows_for, goodput_gbit, link_gbit, seconds_for
from harness.testbed.link.measure.probe import probe_server
from harness.testbed.link.measure.roundtrip import percentile


def rate_of(bins: list[int]) -> float | None:
    return goodput_gbit({place: count for place, count in enumerate(bins) if count})


def gbit(bytes_per_bin: float) -> float:
    return bytes_per_bin * 8 / BIN_NS


@pytest.mark.parametrize(
    "bins", [[10, 50, 100, 500, 900] + [1000] * 40, [1000] * 30 + [0, 0, 3000] + [1000] * 27], ids=["ramp", "late"]
)
def test_neither_the_ramp_nor_data_that_is_taken_in_late_changes_the_rate(bins):
    assert rate_of(bins) == pytest.approx(gbit(1000))


@pytest.mark.parametrize("bins", [[], [1000], [1000] * 5])
def test_too_little_data_gives_no_rate(bins):
    assert rate_of(bins) is None


def test_headers_are_added_to_full_segments():
    assert link_gbit(1448.0, 1448) == pytest.approx(1500.0)


def test_longer_and_faster_links_get_more_flows_and_more_time():
    assert flows_for(0.1, 1.0) < flows_for(30.0, 1.0) < flows_for(150.0, 10.0)
    assert seconds_for(0.1, 5.0, 4) < seconds_for(30.0, 5.0, 32) < seconds_for(150.0, 5.0, 32)


@pytest.mark.parametrize(("share", "expected"), [(0.0, 1.0), (0.5, 2.5), (1.0, 4.0)])
def test_a_percentile_is_interpolated(share, expected):
    assert percentile([4, 1, 3, 2], share) == expected


@pytest.mark.process
def test_the_server_sends_nothing_before_it_is_asked():
    with probe_server(Node("storage", "flowtest")) as port, contextlib.ExitStack() as stack:
        flows = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(3)]
        flows[0].settimeout(0.1)
        with pytest.raises(TimeoutError):
            flows[0].recv(1)
        for flow in flows:
            flow.setblocking(False)
        assert goodput_gbit(drain(flows, 0.2)) > 0
