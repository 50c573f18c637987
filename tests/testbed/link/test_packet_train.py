"""Trains of UDP packets on loopback: the kernel counts them, and their rate is that of what arrived."""

from __future__ import annotations

import socket
import time

import pytest

from harness.testbed.base import Node
from harness.testbed.link.measure.packet_train import (
    Train,
    TrainControl,
    TrainCounter,
    carried_gbit,
    full_train,
    loss_train,
)
from harness.testbed.link.measure.probe import probe_server

LOOPBACK = "127.0.0.1"


@pytest.fixture
def control():
    with probe_server(Node("storage", "probetest")) as server:
        yield TrainControl(LOOPBACK, server)


def test_every_packet_counts_whether_or_not_the_process_reads_and_others_are_waited_for_only_so_long():
    with TrainCounter(LOOPBACK) as counter, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
        assert counter.settle(10, quiet_s=0.05) == 0
        for _ in range(5_000):
            out.sendto(b"x", (LOOPBACK, counter.port))
        assert counter.settle(5_000, quiet_s=0.5) == 5_000


@pytest.mark.process
def test_trains_are_counted_both_ways(control):
    train = Train(packets=3_001, payload_bytes=32, per_s=20_000, limit_s=10)
    assert control.lost_here(train, 0.5) == (3_001, 0)
    assert control.lost_there(train, 0.5) == (3_001, 0)


@pytest.mark.process
def test_a_paced_train_arrives_at_its_pace(control):
    started = time.monotonic()
    arrivals = control.arrivals(Train(packets=2_000, payload_bytes=1_000, per_s=4_000, limit_s=10), 0.05)
    assert time.monotonic() - started > 0.45
    assert arrivals[-1][1] == 2_000
    # A busy host makes it slower, never quicker.
    assert 0 < carried_gbit(arrivals, 1_028) < 1.1 * 4_000 * 1_028 * 8 / 1e9


@pytest.mark.process
def test_a_train_ends_at_its_time_limit(control):
    sent, _ = control.lost_there(Train(packets=10_000, payload_bytes=32, per_s=1_000, limit_s=0.2), 0.1)
    assert sent < 1_000


def test_a_rate_is_that_of_the_middle_of_a_train():
    ms = 1_000_000
    # 125 packets of 1000 bytes a ms are 1 Gbit/s; the first tenth came at once.
    arrivals = [(0, 0), *((t * ms, 1_000 + 125 * t) for t in range(1, 80))]
    assert carried_gbit(arrivals, 1_000) == pytest.approx(1.0)
    assert carried_gbit([(0, 0)], 1_000) is None
    assert carried_gbit([], 1_000) is None


def test_a_loss_train_is_long_enough_to_tell_a_loss_from_twice_that_and_bounded_in_time():
    for loss_pct in (0.1, 1.0, 20.0):
        assert loss_train(loss_pct, 1.0).packets * loss_pct / 100 >= 60
    slow = loss_train(0.001, 0.001)
    assert slow.packets / slow.per_s <= 5.01
    assert slow.per_s * 60 * 8 < 0.001e9


def test_a_full_train_lasts_long_against_the_jitter():
    assert full_train(1.0, 0.0).packets * 1500 * 8 / 1e9 == pytest.approx(0.6, rel=0.01)
    assert full_train(1.0, 40.0).packets * 1500 * 8 / 1e9 == pytest.approx(2.0, rel=0.01)
