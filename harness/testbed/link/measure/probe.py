"""The link's measured round-trip time and rate, from the compute node to a small server on the storage node.

`python -m harness.testbed.link.measure.probe serve HOST` answers on a port of its own until standard input ends;
`python -m harness.testbed.link.measure.probe measure HOST PORT ARGUMENTS` prints a ProbeResult as JSON. ARGUMENTS are
those of `measure`, or those of `measure_impaired`, which also measures jitter and loss, as a JSON object.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from harness.errors import TestbedError
from harness.testbed.base import Node, ProbeResult
from harness.testbed.link.measure.goodput import drain, flows_for, goodput_gbit, link_gbit, pump, seconds_for
from harness.testbed.link.measure.packet_train import TrainControl, answer_train, carried_gbit, full_train, loss_train
from harness.testbed.link.measure.roundtrip import Pinger, percentile, spread
from harness.testbed.link.namespace import MTU
from joulefeed.child import ChildError

if TYPE_CHECKING:
    from harness.config.regime import Regime


MODULE = ["-m", "harness.testbed.link.measure.probe"]
CONNECT_TIMEOUT_S = 5.0
START_TIMEOUT_S = 60.0
LOOK_S = 1.0
RTT_SHARE = 0.25
"""Share of the time that goes to round trips; the rest goes to the rate."""
PINGS_MIN, PINGS_MAX, PINGS_S = 30, 120, 3.0
PING_SPACING_MS = 10.0
PING_JITTERS = 5
"""Standard deviations of the delay between two pings: one in 5,000 waits for the ping before it."""
QUIET_S = 0.25
"""When no more packets come than this after the last one, the missing ones are lost; a busy host delays some."""
NICE = -15


@contextlib.contextmanager
def probe_server(storage: Node) -> Iterator[int]:
    """Run the probe's server on the storage node, and yield its port.

    Raises TestbedError when the server did not start.
    """
    argv = [sys.executable, *MODULE, "serve", storage.address]
    with storage.start(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, keep_stderr=True) as child:
        try:
            port = int(str(child.ready(START_TIMEOUT_S)["port"]))
        except ChildError as error:
            raise TestbedError(f"the probe's server on {storage.address} did not start: {error}") from error
        yield port


def probe(compute: Node, host: str, port: int, regime: Regime) -> ProbeResult:
    """Measure the idle link's round trip and rate; about 0.4 s when near, 0.7 s at 30 ms, 2.5 s at 150 ms.

    Where the regime has jitter or loss, they are measured too, and the rate by UDP, as TCP's goodput sinks with loss
    by design; that takes up to 10 s. So is the rate of a regime with paths, which only TCP takes.

    Args:
        compute: the compute node, on which it measures.
        host: address of the server on the storage node.
        port: port of that server.
        regime: what the link is set to; it decides how long and with how many flows to measure.

    Raises TestbedError for a local regime, no answer, or one that cannot be read.
    """
    if regime.rate_gbit is None:
        raise TestbedError(f"regimes.{regime.name}.rate_gbit is null: a local regime has no link to probe")
    if regime.jitter_ms or regime.loss_pct or regime.paths:
        asked = {"rtt_ms": regime.rtt_ms, "rate_gbit": regime.rate_gbit}
        asked |= {"jitter_ms": regime.jitter_ms, "loss_pct": regime.loss_pct}
        return _measure(compute, host, port, **asked)
    flows = flows_for(regime.rtt_ms, regime.rate_gbit)
    seconds = seconds_for(regime.rtt_ms, regime.rate_gbit, flows) / (1 - RTT_SHARE)
    return _measure(compute, host, port, seconds=seconds, flows=flows)


def probe_nodes(compute: Node, storage: Node, regime: Regime) -> ProbeResult:
    """Measure as `probe` does between two nodes, with a server on the storage node meanwhile; raises as `probe`."""
    with probe_server(storage) as port:
        return probe(compute, storage.address, port, regime)


def rtt_probe(compute: Node, host: str, seconds: float = 0.3) -> ProbeResult:
    """Measure the round trip alone, to a host's kernel: it needs no server. Raises TestbedError as `probe`."""
    return _measure(compute, host, 0, seconds=seconds, flows=0)


def _measure(compute: Node, host: str, port: int, **arguments: float) -> ProbeResult:
    output = compute.run([sys.executable, *MODULE, "measure", host, str(port), json.dumps(arguments)])
    try:
        return ProbeResult(**json.loads(output))
    except (ValueError, TypeError) as error:
        raise TestbedError(f"probe of {host}:{port}: expected one JSON object, got {output[:200]!r}") from error


def measure(host: str, port: int, *, seconds: float, flows: int) -> ProbeResult:
    """Measure from this process; `flows` 0 leaves the rate out.

    Raises OSError when the server cannot be reached, or stops answering.
    """
    with contextlib.ExitStack() as stack:
        pinger = stack.enter_context(Pinger(host))
        pinger.ping(0.0)
        if not flows:
            return _result(pinger.ping(seconds), None)
        # The flows connect while the pings run; they send nothing before they are asked to.
        connections = [stack.enter_context(socket.socket()) for _ in range(flows)]
        for connection in connections:
            connection.setblocking(False)
            connection.connect_ex((host, port))
        trips = pinger.ping(RTT_SHARE * seconds)
        for connection in connections:
            _finish_connecting(connection)
        segment_bytes = connections[0].getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)
        goodput = goodput_gbit(drain(connections, (1 - RTT_SHARE) * seconds))
        return _result(trips, None if goodput is None else link_gbit(goodput, segment_bytes))


def measure_impaired(
    host: str, port: int, *, rtt_ms: float, rate_gbit: float, jitter_ms: float, loss_pct: float
) -> ProbeResult:
    """Measure from this process a link that is set to these; the arguments decide how much is sent, and how quickly.

    Raises OSError when the server cannot be reached, or stops answering.
    """
    # So far apart no packet waits for the one before it, which the link would not let it overtake.
    spacing_ms = max(PING_SPACING_MS, PING_JITTERS * jitter_ms)
    pings = max(PINGS_MIN, min(PINGS_MAX, round(PINGS_S * 1e3 / spacing_ms)))
    with Pinger(host) as pinger:
        trips = pinger.ping(2 * pings * spacing_ms / 1e3, max_requests=pings, every_ns=round(spacing_ms * 1e6))
    control = TrainControl(host, port)
    quiet_s = QUIET_S + (2 * rtt_ms + PING_JITTERS * jitter_ms) / 1e3
    down, up = (0, 0), (0, 0)
    if loss_pct:
        train = loss_train(loss_pct, rate_gbit)
        with ThreadPoolExecutor(1) as thread:
            away = thread.submit(control.lost_there, train, quiet_s)
            down = control.lost_here(train, quiet_s)
            up = away.result()
    full = full_train(rate_gbit, jitter_ms)
    carried = carried_gbit(control.arrivals(full, quiet_s), MTU)
    arrived = 1 - down[1] / down[0] if down[0] else 1.0
    return replace(
        _result(trips, None if carried is None or not arrived else carried / arrived),
        jitter_ms=spread(trips) / math.sqrt(2) / 1e6 if jitter_ms else None,
        packets_to_compute=down[0] if loss_pct else None,
        lost_to_compute=down[1] if loss_pct else None,
        packets_to_storage=up[0] if loss_pct else None,
        lost_to_storage=up[1] if loss_pct else None,
    )


def _finish_connecting(connection: socket.socket) -> None:
    _, connected, _ = select.select((), (connection,), (), CONNECT_TIMEOUT_S)
    failure = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) if connected else errno.ETIMEDOUT
    if failure:
        raise OSError(failure, os.strerror(failure))


def _result(trips: list[int], rate_gbit: float | None) -> ProbeResult:
    return ProbeResult(
        rtt_ms_median=percentile(trips, 0.5) / 1e6,
        rtt_ms_min=min(trips) / 1e6,
        rtt_ms_p99=percentile(trips, 0.99) / 1e6,
        rtt_samples=len(trips),
        rate_gbit=rate_gbit,
    )


def serve(host: str) -> None:
    """Answer on a free port of `host` until standard input ends or the parent dies, each connection in a thread.

    A connection whose first byte opens a JSON object asks for trains of packets; any other one asks for a flow.
    """
    parent = os.getppid()
    with socket.create_server((host, 0), backlog=64) as listener:
        print(json.dumps({"port": listener.getsockname()[1]}), flush=True)
        while os.getppid() == parent:
            ready, _, _ = select.select((sys.stdin, listener), (), (), LOOK_S)
            if sys.stdin in ready:
                return
            if listener in ready:
                threading.Thread(target=_answer, args=listener.accept()[:1], daemon=True).start()


def _answer(connection: socket.socket) -> None:
    with connection, contextlib.suppress(ConnectionError):
        if first := connection.recv(1, socket.MSG_PEEK):
            (answer_train if first == b"{" else pump)(connection)


def main(command: str, host: str, *options: str) -> int:
    """Run `serve` or `measure`; return the exit status."""
    # The link is measured and not how long this process waits for a CPU.
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, NICE)
    try:
        if command == "serve":
            serve(host)
        else:
            port, arguments = int(options[0]), json.loads(options[1])
            measuring = measure_impaired if "rtt_ms" in arguments else measure
            print(json.dumps(asdict(measuring(host, port, **arguments))))
    except OSError as error:
        print(f"probe {command} {':'.join((host, *options[:1]))}: {error}", file=sys.stderr)
        return TestbedError.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
