from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from harness.config.regime import Regime
from harness.config.specs import Tolerances
from harness.errors import TestbedError
from harness.testbed.base import Node, ProbeResult
from harness.testbed.link import COMPUTE_ADDRESS, INTERFACE, STORAGE_ADDRESS, open_link
from harness.testbed.link.measure.bounds import list_link_bounds
from harness.testbed.link.measure.probe import probe, probe_server
from harness.testbed.link.measure.roundtrip import Pinger
from harness.testbed.link.namespace import inside, run_in
from harness.testbed.link.userspace import relay_link
from tests.integration.runs import has_ended, two_namespaces, wait_until

serial = pytest.mark.serial
"""What else runs may spoil what these tests measure."""
pytestmark = [
    pytest.mark.process,
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces and TUN devices"),
]

NEAR = Regime(name="near", rtt_ms=1.0, rate_gbit=1.0)
BUSY = {"rtt", "rate", "jitter"}
"""What a busy host may spoil of a link that is right; it never changes how many packets are lost."""
FAR = Regime(name="far", rtt_ms=40.0, rate_gbit=1.0)


@pytest.fixture
def namespaces():
    with two_namespaces() as made:
        yield made


@pytest.fixture(scope="module")
def shared_namespaces():
    with two_namespaces() as made:
        yield made


@pytest.fixture(scope="module")
def shared_link(shared_namespaces):
    """A link whose regime tests change."""
    with open_link(*shared_namespaces, kind="relay") as opened:
        yield opened


def interfaces(namespace: str) -> list[str]:
    return [each["ifname"] for each in json.loads(run_in(namespace, ["ip", "-j", "link"]))]


def round_trips_ms(namespace: str, seconds: float = 0.1) -> list[float]:
    with inside(namespace, lambda: Pinger(STORAGE_ADDRESS)) as pinger:
        return [trip / 1e6 for trip in pinger.ping(seconds)]


def measured_rate_gbit(namespaces: tuple[str, str], regime: Regime) -> float | None:
    return probed(namespaces, regime).rate_gbit


def probed(namespaces: tuple[str, str], regime: Regime) -> ProbeResult:
    storage, compute = namespaces

    with probe_server(Node("storage", "linktest", STORAGE_ADDRESS, namespace=storage)) as port:
        return probe(Node("compute", "linktest", namespace=compute), STORAGE_ADDRESS, port, regime)


def unkept(namespaces: tuple[str, str], regime: Regime) -> set[str]:
    """Return the rules that a probe of the link fails."""
    return {b.rule for b in list_link_bounds(regime, probed(namespaces, regime), Tolerances()) if not b.kept}


def test_a_link_gives_both_ends_their_address_describes_itself_and_takes_everything_away_again(namespaces):
    with open_link(*namespaces, kind="relay") as link:
        for namespace, address in zip(namespaces, (STORAGE_ADDRESS, COMPUTE_ADDRESS), strict=True):
            assert INTERFACE in interfaces(namespace)
            assert f"{address}/30" in run_in(namespace, ["ip", "address", "show", INTERFACE])
        pid = link.pid
        assert pid is not None
        link.set(NEAR)
        described = link.describe()
        assert described["kind"] == "relay"
        assert described["mtu_bytes"] == 1500
        assert 0 < described["floor_ms"] == link.floor_ms < 5
        assert described["storage_tcp"]["net.ipv4.tcp_congestion_control"]
        assert described["storage_tcp"]["net.ipv4.tcp_rmem"].endswith(str(64 * 1024 * 1024))
        assert [each["rtt_ms"] for each in described["calibrations"]] == [1.0]
        json.dumps(described)
    assert wait_until(lambda: has_ended(pid))
    assert [interfaces(namespace) for namespace in namespaces] == [["lo"], ["lo"]]
    link.close()


def test_every_round_trip_takes_at_least_the_regimes_and_a_running_link_changes_to_another(
    shared_link, shared_namespaces
):
    shared_link.set(FAR)
    # The kernel and the relay add some of their own, which calibration takes off the delay: a few per cent.
    assert min(round_trips_ms(shared_namespaces[1])) > 0.9 * FAR.rtt_ms
    shared_link.set(NEAR)
    assert min(round_trips_ms(shared_namespaces[1])) < FAR.rtt_ms / 2
    assert shared_link.describe()["regime"] == "near"


@serial
def test_saturating_flows_lose_nothing_and_are_counted(shared_link, shared_namespaces):
    shared_link.set(NEAR)
    before = shared_link.counters()
    assert measured_rate_gbit(shared_namespaces, NEAR) is not None
    after = shared_link.counters()
    assert after.drops == 0
    assert after.bytes - before.bytes > 1_000_000
    assert after.packets > before.packets
    assert after.cpu_s > before.cpu_s


def test_without_tbf_the_relay_caps_the_rate_itself(namespaces, monkeypatch):
    monkeypatch.setattr(relay_link, "kernel_has", lambda *_: False)
    slow = Regime(name="slow", rtt_ms=2.0, rate_gbit=0.1)
    with open_link(*namespaces, kind="relay") as link:
        link.set(slow)
        before = link.counters().bytes
        started = time.monotonic()
        measured_rate_gbit(namespaces, slow)
        elapsed = time.monotonic() - started
        carried_bits = (link.counters().bytes - before) * 8
        assert link.describe()["relay"]["rate_cap"] == "in the relay"
    assert 0 < carried_bits < 2 * slow.rate_gbit * 1e9 * (elapsed + 0.1)


@serial
def test_wanted_losses_are_lost_and_are_no_drops(shared_link, shared_namespaces):
    shared_link.set(Regime(name="lossy", rtt_ms=0.5, rate_gbit=1.0, loss_pct=20.0))
    with inside(shared_namespaces[1], lambda: Pinger(STORAGE_ADDRESS)) as pinger:
        answered = len(pinger.ping(1.0, max_requests=100))
    assert 30 < answered < 95
    assert shared_link.counters().drops == 0


def test_the_answers_to_one_pinger_of_a_process_are_none_to_another(shared_link, shared_namespaces):
    shared_link.set(NEAR)
    with (
        inside(shared_namespaces[1], lambda: Pinger(STORAGE_ADDRESS)) as asks,
        inside(shared_namespaces[1], lambda: Pinger(STORAGE_ADDRESS)) as hears,
    ):
        assert len(asks.ping(0.1, max_requests=3)) == 3
        while select.select((hears,), (), (), 0.1)[0]:
            assert hears.receive() is None


@pytest.mark.slow
@serial
def test_a_link_with_loss_and_jitter_is_found_to_do_as_asked_and_one_that_does_not_is_not(
    shared_link, shared_namespaces
):
    asked = Regime(name="far", rtt_ms=30.0, rate_gbit=0.1, jitter_ms=2.0, loss_pct=1.0)
    shared_link.set(asked)
    assert unkept(shared_namespaces, asked) <= BUSY
    shared_link.set(Regime(name="other", rtt_ms=30.0, rate_gbit=0.05, loss_pct=2.0))
    assert unkept(shared_namespaces, asked) >= {"jitter", "rate", "loss_to_compute", "loss_to_storage"}
    assert shared_link.counters().drops == 0


def received_s(namespaces: tuple[str, str], connections: int, nbytes: int) -> list[float]:
    """Return how long each connection takes to receive so many bytes; one after the other, in the order of opening."""
    storage, compute = namespaces
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(inside(storage, lambda: socket.create_server((STORAGE_ADDRESS, 0))))
        address, took = listener.getsockname(), []
        for _ in range(connections):
            near = stack.enter_context(inside(compute, lambda: socket.create_connection(address, timeout=10)))
            far = stack.enter_context(listener.accept()[0])
            sending = threading.Thread(target=far.sendall, args=(bytes(nbytes),))
            near.settimeout(20)
            began, left = time.monotonic(), nbytes
            sending.start()
            while left:
                left -= len(near.recv(min(left, 1 << 16)))
            took.append(time.monotonic() - began)
            sending.join()
        return took


@serial
def test_one_connection_takes_a_slow_path_while_another_and_the_pings_do_not(shared_link, shared_namespaces):
    paths = ({}, {"rtt_ms": 30.0, "rate_gbit": 0.01})
    asked = Regime(name="unequal", rtt_ms=4.0, rate_gbit=1.0, paths=paths)
    shared_link.set(asked)
    before = shared_link.counters()
    quick_s, slow_s, again_s = received_s(shared_namespaces, connections=3, nbytes=1_000_000)
    after = shared_link.counters()
    carried = [path.since(earlier) for path, earlier in zip(after.paths, before.paths, strict=True)]
    # 1 MB at 10 Mbit/s takes 0.8 s.
    assert slow_s > 0.8 > 4 * max(quick_s, again_s)
    assert [path.connections for path in carried] == [2, 1]
    assert carried[0].bytes > 2_000_000 > carried[1].bytes > 1_000_000
    assert after.drops == before.drops
    assert after.bytes - before.bytes >= sum(path.bytes for path in carried)
    assert unkept(shared_namespaces, asked) <= BUSY
    shared_link.set(NEAR)
    assert shared_link.counters().paths == ()
    assert shared_link.counters().bytes >= after.bytes


def test_a_local_regime_a_second_link_and_a_namespace_that_is_missing_are_refused(
    shared_link, shared_namespaces, namespaces
):
    with pytest.raises(TestbedError, match=r"regimes\.local\.rate_gbit"):
        shared_link.set(Regime(name="local"))
    with pytest.raises(TestbedError, match="/run/netns/jft-none"):
        open_link(namespaces[0], "/run/netns/jft-none", kind="relay")
    assert interfaces(namespaces[0]) == ["lo"]
    with pytest.raises(TestbedError, match=INTERFACE):
        open_link(*shared_namespaces, kind="relay")
    shared_link.set(NEAR)


def test_two_links_live_side_by_side_and_a_relay_that_is_killed_is_reported_with_its_pid(shared_link):
    with two_namespaces() as others, open_link(*others, kind="relay") as other:
        shared_link.set(NEAR)
        other.set(FAR)
        assert min(round_trips_ms(others[1])) > 0.9 * FAR.rtt_ms
        os.kill(other.pid, signal.SIGKILL)
        with pytest.raises(TestbedError, match=f"pid {other.pid}"):
            other.counters()


def test_the_relay_and_its_interfaces_end_when_the_harness_is_killed(namespaces):
    script = textwrap.dedent(
        f"""
        import time
        from harness.testbed.link import open_link
        link = open_link({namespaces[0]!r}, {namespaces[1]!r}, kind="relay")
        print(link.pid, flush=True)
        time.sleep(60)
        """
    )
    owner = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    relay_pid = int(owner.stdout.readline())
    owner.send_signal(signal.SIGKILL)
    owner.communicate()
    assert wait_until(lambda: has_ended(relay_pid))
    assert interfaces(namespaces[0]) == ["lo"]


def test_asking_for_netem_without_it_says_what_to_do(namespaces):
    try:
        link = open_link(*namespaces, kind="netem")
    except TestbedError as error:
        assert "sch_netem" in str(error)
        return
    with link:
        link.set(FAR)
        assert min(round_trips_ms(namespaces[1])) > 0.9 * FAR.rtt_ms
        assert link.counters().drops == 0
