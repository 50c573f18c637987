"""What an agent has stored, for a Prometheus server that asks for it over HTTP; needs the package prometheus-client."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from energymon.analysis.attribution import directness
from energymon.clock.monotonic import NS
from energymon.clock.sync import split_address
from energymon.errors import OptionError
from energymon.reading import ESTIMATE, START, Reading, Session
from energymon.sampling.outages import Jitter
from energymon.store import SqliteStore

_LOOPBACK: Final = "127.0.0.1"
_REQUEST_S: Final = 5.0
"""A program that connects has this long for its request."""
_AGAIN_S: Final = 1.0
"""An answer is given again for so long: asking more often is no work for the agent, and shows no shorter spans."""
_POWER_NS: Final = 2 * NS
"""Power is the mean of this time; a device that was not read for twice as long is down."""


def serve(option: str, families: Callable[[], Iterable[Any]]) -> Any:
    """Answer GET /metrics with the metrics that a function returns, on threads of the process; return the server.

    Raises OptionError for an option that is neither PORT, on 127.0.0.1, nor ADDRESS:PORT, for an address that is in
    use, and where prometheus-client is not installed.
    """
    try:
        from prometheus_client import CollectorRegistry, start_http_server
    except ImportError as error:
        raise OptionError(f"--prometheus: {error}; `pip install prometheus-client` brings it") from error
    host, port = split_address(f"{_LOOPBACK}:{option}" if option.isdecimal() else option) or ("", None)
    if port is None:
        raise OptionError(f"--prometheus {option!r}: expected PORT, which is of {_LOOPBACK}, or ADDRESS:PORT")
    lock, cached, due_s = threading.Lock(), list[Any](), 0.0

    class _Collector:
        def collect(self) -> Iterable[Any]:
            nonlocal cached, due_s
            with lock:
                if time.monotonic() >= due_s:
                    cached, due_s = list(families()), time.monotonic() + _AGAIN_S
                return cached

    registry = CollectorRegistry()
    registry.register(_Collector())
    try:
        server: Any = start_http_server(port, host, registry)[0]
    except OSError as error:
        raise OptionError(f"--prometheus {option}: {error.strerror or error}; name another address") from error
    server.RequestHandlerClass.timeout = _REQUEST_S
    return server


def metrics(store: SqliteStore, session: Session, now_ns: int, jitter: Jitter) -> list[Any]:
    """Return what a session has stored until `now_ns`, by the clock of its readings, as metrics of prometheus-client.

    Of several sources of a device the most direct one is given, so that a sum over devices is the host's; an estimate
    is in metrics of its own.
    """
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    series: dict[tuple[str, str], dict[str, list[Reading]]] = {}
    for r in store.readings(now_ns - 2 * _POWER_NS, now_ns, session.node):
        if r.t_ns >= session.start_ns:
            series.setdefault((r.device, r.domain), {}).setdefault(r.source, []).append(r)
    found: dict[str, Any] = {}

    def add(kind: type[Any], name: str, what: str, value: float, **labels: str) -> None:
        if name not in found:
            found[name] = kind(f"energymon_{name}", what, labels=["node", *labels])
        found[name].add_metric([session.node, *labels.values()], value)

    for (device, domain), sources in series.items():
        source, rows = min(sources.items(), key=lambda one: directness(one[0]))
        of, an = {"device": device, "domain": domain, "source": source}, "estimated_" if source == ESTIMATE else ""
        is_up = rows[-1].t_ns >= now_ns - 2 * _POWER_NS
        add(GaugeMetricFamily, "up", "Whether the device was read in the last 4 s", is_up, **of)
        add(CounterMetricFamily, f"{an}joules", "Joules since the agent started", rows[-1].joules, **of)
        begin = max((i for i, r in enumerate(rows) if r.flags == START), default=0)
        recent = [r for r in rows[begin:] if r.t_ns >= rows[-1].t_ns - _POWER_NS]
        elapsed_s = (recent[-1].t_ns - recent[0].t_ns) / NS
        if is_up and elapsed_s > 0:
            watts = (recent[-1].joules - recent[0].joules) / elapsed_s
            add(GaugeMetricFamily, f"{an}watts", "Mean power of the last 2 s, W", watts, **of)
    add(CounterMetricFamily, "ticks", "Ticks that were sampled", jitter.ticks)
    add(CounterMetricFamily, "ticks_missed", "Ticks that were missed", jitter.missed)
    return list(found.values())
