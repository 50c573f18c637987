from __future__ import annotations

import contextlib
import os
import socket
import threading

import pytest

from harness.testbed.link.measure.goodput import BIN_NS, FlowMeter, FlowPump, flows_for, link_gbit, seconds_for
from harness.testbed.link.measure.roundtrip import percentile


def meter_with(bins: list[int]) -> FlowMeter:
    meter = FlowMeter([])
    meter._bins = {place: count for place, count in enumerate(bins) if count}
    return meter


def gbit(bytes_per_bin: float) -> float:
    return bytes_per_bin * 8 / BIN_NS


def test_the_ramp_does_not_count():
    bins = [10, 50, 100, 500, 900] + [1000] * 40
    assert meter_with(bins).goodput_gbit() == pytest.approx(gbit(1000))


def test_a_receiver_that_takes_data_in_late_does_not_change_the_rate():
    bins = [1000] * 60
    bins[30:33] = [0, 0, 3000]
    assert meter_with(bins).goodput_gbit() == pytest.approx(gbit(1000))


@pytest.mark.parametrize("bins", [[], [1000], [1000] * 5])
def test_too_little_data_gives_no_rate(bins):
    assert meter_with(bins).goodput_gbit() is None


def test_headers_are_added_to_full_segments():
    assert link_gbit(1448.0, 1448) == pytest.approx(1500.0)


def test_longer_and_faster_links_get_more_flows_and_more_time():
    assert flows_for(0.1, 1.0) < flows_for(30.0, 1.0) < flows_for(150.0, 10.0)
    assert seconds_for(0.1, 5.0, 4) < seconds_for(30.0, 5.0, 32) < seconds_for(150.0, 5.0, 32)


@pytest.mark.parametrize(("share", "expected"), [(0.0, 1.0), (0.5, 2.5), (1.0, 4.0)])
def test_a_percentile_is_interpolated(share, expected):
    assert percentile([4, 1, 3, 2], share) == expected


def test_a_pump_sends_nothing_before_it_is_asked_and_stops_when_told():
    stop_read, stop_write = os.pipe()
    with socket.create_server(("127.0.0.1", 0)) as listener, contextlib.ExitStack() as stack:
        pump = FlowPump(listener, stop_read, socket.socket.close)
        pumping = threading.Thread(target=pump.run, args=(lambda: False,))
        pumping.start()
        flows = [stack.enter_context(socket.create_connection(listener.getsockname())) for _ in range(3)]
        flows[0].settimeout(0.1)
        with pytest.raises(TimeoutError):
            flows[0].recv(1)
        for flow in flows:
            flow.setblocking(False)
        meter = FlowMeter(flows)
        meter.drain(0.2)
        assert meter.goodput_gbit() > 0
        os.close(stop_write)
        pumping.join(5)
        assert not pumping.is_alive()
        pump.close()
    os.close(stop_read)
