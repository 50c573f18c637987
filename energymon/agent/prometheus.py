"""What an agent has stored, for a Prometheus server that asks for it over HTTP; needs the package prometheus-client."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, cast

from energymon.analysis.attribution import directness
from energymon.clock.monotonic import NS
from energymon.clock.sync import split_address
from energymon.errors import OptionError
from energymon.reading import ESTIMATE, START, WHOLES, Reading, Session
from energymon.sampling.outages import Jitter
from energymon.store import SqliteStore
from joulefeed.closing import receives_for

_LOOPBACK: Final = "127.0.0.1"
_REQUEST_S: Final = 5.0
"""A program that connects has this long for its request."""
_AGAIN_S: Final = 1.0
"""An answer is given again for so long: asking more often is no work for the agent, and shows no shorter spans."""
_POWER_NS: Final = 2 * NS
"""Power is the mean of this time, or 2 periods of a slow meter; a device not read for twice as long is down."""


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

    class _MetricsHandler(server.RequestHandlerClass):  # type: ignore[misc]
        timeout = _REQUEST_S

        def handle(self) -> None:
            with receives_for(self.connection, _REQUEST_S):
                super().handle()

    server.RequestHandlerClass = _MetricsHandler
    return server


def metrics(store: SqliteStore, session: Session, now_ns: int, jitter: Jitter) -> list[Any]:
    """Return what a session has stored until `now_ns`, by the clock of its readings, as metrics of prometheus-client.

    Of several sources of a device the most direct one is given, so that a sum over devices counts nothing twice; an
    estimate, and each whole that contains other devices, is in metrics of its own. The power of a meter at the wall is
    what it shows, where it shows any, for its counter may be updated once a minute.
    """
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    series: dict[tuple[str, str], dict[str, list[Reading]]] = {}
    sensors = cast(Sequence[Mapping[str, Any]], session.description.get("sensors", ()))
    meters = [(c["device"], one["period_s"]) for one in sensors if "period_s" in one for c in one["channels"]]
    spans_ns = {device: max(_POWER_NS, round(2 * period_s * NS)) for device, period_s in meters}
    for r in store.readings(now_ns - 2 * max(spans_ns.values(), default=_POWER_NS), now_ns, session.node):
        if r.t_ns >= session.start_ns:
            series.setdefault((r.device, r.domain), {}).setdefault(r.source, []).append(r)
    found: dict[str, Any] = {}

    def add(kind: type[Any], name: str, what: str, value: float, **labels: str) -> None:
        if name not in found:
            found[name] = kind(f"energymon_{name}", what, labels=["node", *labels])
        found[name].add_metric([session.node, *labels.values()], value)

    for (device, domain), sources in series.items():
        source, rows = min(sources.items(), key=lambda one: directness(one[0]))
        of = {"device": device, "domain": domain, "source": source}
        apart = "estimated_" if source == ESTIMATE else f"{domain}_" if domain in WHOLES else ""
        span_ns = spans_ns.get(device, _POWER_NS)
        is_up = rows[-1].t_ns >= now_ns - 2 * span_ns
        add(GaugeMetricFamily, "up", "Whether the device was read in the last 4 s, a slow meter 4 periods", is_up, **of)
        add(CounterMetricFamily, f"{apart}joules", "Joules since the agent started", rows[-1].joules, **of)
        if domain == "wall":
            of["source"], rows = max(sources.items(), key=lambda one: directness(one[0]))
        begin = max((i for i, r in enumerate(rows) if r.flags == START), default=0)
        recent = [r for r in rows[begin:] if r.t_ns >= rows[-1].t_ns - span_ns]
        elapsed_s = (recent[-1].t_ns - recent[0].t_ns) / NS
        if is_up and elapsed_s > 0:
            watts = (recent[-1].joules - recent[0].joules) / elapsed_s
            add(GaugeMetricFamily, f"{apart}watts", "Mean power of 2 s, of a slow meter 2 periods, W", watts, **of)
    add(CounterMetricFamily, "ticks", "Ticks that were sampled", jitter.ticks)
    add(CounterMetricFamily, "ticks_missed", "Ticks that were missed", jitter.missed)
    return list(found.values())
