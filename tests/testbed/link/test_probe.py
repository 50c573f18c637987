from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from harness.config.regime import Regime
from harness.errors import TestbedError
from harness.testbed.base import Node
from harness.testbed.link.measure.probe import MODULE, probe, probe_server, rtt_probe

pytestmark = pytest.mark.process

LOOPBACK = "127.0.0.1"
NEAR = Regime(name="near", rtt_ms=0.1, rate_gbit=1.0)


HERE = Node("compute", "probetest")
needs_ping = pytest.mark.skipif(os.geteuid() != 0, reason="needs CAP_NET_RAW")


@pytest.fixture
def server():
    with probe_server(Node("storage", "probetest")) as running:
        yield running


@needs_ping
def test_a_probe_tells_round_trip_and_rate(server):
    result = probe(HERE, LOOPBACK, server, NEAR)
    assert 0 < result.rtt_ms_min <= result.rtt_ms_median <= result.rtt_ms_p99
    assert result.rtt_samples > 1
    assert result.rate_gbit > 0


@needs_ping
def test_a_round_trip_probe_needs_no_server_and_leaves_the_rate_out():
    assert rtt_probe(HERE, LOOPBACK, seconds=0.05).rate_gbit is None


def test_a_local_regime_is_refused(server):
    with pytest.raises(TestbedError, match=r"regimes\.local\.rate_gbit"):
        probe(HERE, LOOPBACK, server, Regime(name="local"))


@needs_ping
def test_a_server_that_is_not_there_is_named():
    with socket.create_server((LOOPBACK, 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(TestbedError, match=f"{LOOPBACK}:{port}"):
        probe(HERE, LOOPBACK, port, NEAR)


def test_a_server_on_an_address_that_is_not_here_says_so():
    with pytest.raises(TestbedError, match=r"192\.0\.2\.1"):
        probe_server(Node("storage", "probetest", "192.0.2.1")).__enter__()


def test_the_server_ends_with_its_standard_input():
    argv = [sys.executable, *MODULE, "serve", LOOPBACK]
    with HERE.start(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.ready(60)["port"] > 0
        server.hang_up()
        assert server.process.wait(5) == 0
