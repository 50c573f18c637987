import os
import random
import select
import socket
import struct
import threading
import time
from contextlib import contextmanager

import pytest

from energymon.clock.sync import Responder, measure
from energymon.errors import ClockError, OptionError

MS = 1_000_000
S = 1000 * MS
CLOCKS_NS = 1_000_000
"""What two clocks of one process may differ by when somebody interrupts the measuring of one."""


@contextmanager
def relay(port, there=lambda n: 0.0, back=lambda n: 0.0, change=lambda reply: reply):
    """Carry exchanges to a responder, the n-th with its delays in seconds, or not at all where that is None."""
    near = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    near.bind(("127.0.0.1", 0))
    far = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    far.connect(("127.0.0.1", port))
    stop, stopper = os.pipe()

    def carry():
        due, asked, answered, client = [], 0, 0, None
        while True:
            wait = max(0.0, min((at for at, _ in due), default=3600) - time.monotonic())
            ready = select.select([near, far, stop], [], [], wait)[0]
            if stop in ready:
                return
            now = time.monotonic()
            if near in ready:
                request, client = near.recvfrom(512)
                if (delay := there(asked)) is not None:
                    due.append((now + delay, lambda request=request: far.send(request)))
                asked += 1
            if far in ready:
                reply = change(far.recv(512))
                if (delay := back(answered)) is not None:
                    due.append((now + delay, lambda reply=reply, to=client: near.sendto(reply, to)))
                answered += 1
            for _, send in [item for item in due if item[0] <= time.monotonic()]:
                send()
            due = [item for item in due if item[0] > time.monotonic()]

    thread = threading.Thread(target=carry)
    thread.start()
    try:
        yield near.getsockname()[1]
    finally:
        os.close(stopper)
        thread.join()
        os.close(stop)
        near.close()
        far.close()


def ahead_by(offset_ns):
    return lambda: time.time_ns() + offset_ns


@pytest.mark.parametrize("offset_ns", [0, 5 * S, -3 * MS])
def test_the_offset_of_a_clock_is_measured_within_its_bound(offset_ns):
    with Responder("127.0.0.1", clock=ahead_by(offset_ns)) as responder:
        found = measure(f"127.0.0.1:{responder.port}", "n")
    assert (found.node, found.peer) == ("n", "controller")
    assert abs(found.offset_ns - offset_ns) <= found.error_ns + CLOCKS_NS
    assert abs(found.t_ns - time.time_ns()) < 5 * S


@pytest.mark.parametrize(("there_s", "back_s"), [(0.03, 0.0), (0.0, 0.03), (0.02, 0.01)])
def test_the_bound_holds_however_unequal_the_ways_are(there_s, back_s):
    with (
        Responder("127.0.0.1", clock=ahead_by(S)) as responder,
        relay(responder.port, lambda n: there_s, lambda n: back_s) as port,
    ):
        found = measure(f"127.0.0.1:{port}", "n", attempts=3)
    assert found.error_ns >= 15 * MS
    assert abs(found.offset_ns - S) <= found.error_ns + CLOCKS_NS


@pytest.mark.process
def test_the_quickest_exchange_is_taken():
    delays = [0.15, 0.12, 0.0, 0.14]
    with Responder("127.0.0.1") as responder, relay(responder.port, lambda n: delays[n]) as port:
        found = measure(f"127.0.0.1:{port}", "n", attempts=4)
    assert found.error_ns < 60 * MS


def test_an_answer_that_comes_late_is_not_taken_for_the_next_requests():
    with Responder("127.0.0.1") as responder, relay(responder.port, back=lambda n: 0.08 if n < 3 else 0.0) as port:
        found = measure(f"127.0.0.1:{port}", "n", attempts=8, timeout_s=0.05)
    assert found.error_ns < 26 * MS
    assert abs(found.offset_ns) <= found.error_ns + CLOCKS_NS


@pytest.mark.parametrize(
    "change",
    [
        lambda reply: reply[:8] + bytes(8) + reply[16:],
        lambda reply: b"x" * 8 + reply[8:],
        lambda reply: reply[:-1],
        lambda reply: b"",
        lambda reply: reply[:16] + reply[24:] + reply[16:24] if reply[16:24] != reply[24:] else b"",
        *(lambda reply, ns=ns: reply[:16] + struct.pack("!qq", ns, ns) for ns in (-(2**63), -1, 2**62 + 1, 2**63 - 1)),
    ],
    ids=["nonce", "magic", "short", "empty", "backwards", "ancient", "before 1970", "after 2116", "last"],
)
def test_an_answer_that_is_none_or_has_impossible_times_is_refused_and_its_peer_named(change):
    with (
        Responder("127.0.0.1") as responder,
        relay(responder.port, change=change) as port,
        pytest.raises(ClockError, match=f"127.0.0.1:{port}"),
    ):
        measure(f"127.0.0.1:{port}", "n", attempts=2, timeout_s=0.05)


def test_garbage_is_not_answered_and_does_no_harm():
    dice = random.Random(1)
    with Responder("127.0.0.1") as responder, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.connect(("127.0.0.1", responder.port))
        for size in [0, 1, 15, 16, 17, 400, 4000] * 5:
            stranger.send(dice.randbytes(size))
        found = measure(f"127.0.0.1:{responder.port}", "n")
        stranger.setblocking(False)
        with pytest.raises(BlockingIOError):
            stranger.recv(512)
    assert abs(found.offset_ns) <= found.error_ns + CLOCKS_NS


def test_it_answers_on_the_address_given_alone():
    with Responder("127.0.0.1") as responder:
        with pytest.raises(ClockError, match=r"127\.0\.0\.2"):
            measure(f"127.0.0.2:{responder.port}", "n", attempts=1, timeout_s=0.05)
        with pytest.raises(ClockError, match=r"127\.0\.0\.1"):
            Responder("127.0.0.1", responder.port)
    with pytest.raises(OptionError, match=r"192\.0\.2\.1"):
        Responder("")


def test_nobody_there_is_told_with_what_to_do():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    with pytest.raises(ClockError, match=f"127.0.0.1:{port}.*energymon clock --listen"):
        measure(f"127.0.0.1:{port}", "n", attempts=2, timeout_s=0.05)


@pytest.mark.parametrize(
    "peer",
    ["", "host", "host:", ":5", "host:0", "host:70000", "host:x", "::1:5", "[::1]", "[::1:5", "h:" + "9" * 5000, "h:²"],
)
def test_a_peer_that_is_no_host_and_port_is_refused(peer):
    with pytest.raises(OptionError, match="HOST:PORT"):
        measure(peer, "n")
