"""An epoch's row, a window and `energymon query` give the same joules for the same readings."""

import contextlib
import io
import json
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from energymon import Reading, SqliteStore, Window, WindowError
from energymon.__main__ import main
from energymon.agent import process as process_module
from energymon.agent import window as window_module
from energymon.analysis.attribution import series_of
from harness.results.make_rows import make_epoch_rows
from tests.harness.records import change, with_events

S = 1_000_000_000
TICK = S // 10
START = 1_700_000_000 * S
SOURCES = {
    "cpu": ("rapl-perf", "rapl-powercap", "estimate"),
    "dram": ("rapl-perf",),
    "gpu": ("nvml-counter", "nvml-power"),
    "module": ("nvml-counter", "nvml-power"),
    "wall": ("shelly-energy", "shelly-power"),
}
LAG_S = {"rapl-perf": None, "rapl-powercap": 0.001, "nvml-counter": 0.1, "nvml-power": 0.1, "estimate": 0.05}
LAG_S |= {"shelly-energy": 0.1, "shelly-power": 0.1}


@st.composite
def series(draw, device, domain, source):
    """Draw the readings of one series around START to START + 2 s, some ticks missed, some of a lost sensor."""
    lost = draw(st.sampled_from([None, None, None, 4, 12]))
    missed = draw(st.sets(st.integers(-6, 30), max_size=4))
    steps = draw(st.lists(st.floats(0, 40), min_size=40, max_size=40))
    late_ns = draw(st.integers(0, 300_000))
    early_ns = draw(st.sampled_from([None, 0, 40_000_000]))
    joules, readings = 0.0, []
    for k, step in zip(range(-8, 32), steps, strict=True):
        joules += step
        if k not in missed and (lost is None or k < lost):
            tick = START + k * TICK
            at = tick + draw(st.integers(0, 2_000_000))
            readings.append(Reading(tick, at, "n", device, domain, source, joules, "", early_ns, late_ns))
    return readings


@st.composite
def hosts(draw):
    """Draw a host: the sensors that it describes, its readings, and what it cannot read."""
    devices = [("package-0", "cpu"), ("package-1", "cpu"), ("package-0", "dram"), ("gpu-0", "gpu"), ("gpu-1", "gpu")]
    devices += [("gpu-0", "module"), ("plug", "wall")]
    sensors, readings = [], []
    for device, domain in draw(st.lists(st.sampled_from(devices), min_size=1, unique=True)):
        for source in draw(st.lists(st.sampled_from(SOURCES[domain]), min_size=1, unique=True)):
            channel = {"device": device, "domain": domain, "lag_s": LAG_S[source]}
            sensors.append({"source": source, "channels": [channel]})
            readings += draw(series(device, domain, source))
    unreadable = draw(st.sampled_from([[], [], [{"device": "gpu-7", "domain": "gpu", "reason": "lost"}]]))
    return {"sensors": sensors, "unreadable": unreadable}, readings


def queried(path, start_ns, end_ns):
    """Return the components that `python -m energymon query --json` prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        status = main(["query", "--store", str(path), "--start", str(start_ns), "--end", str(end_ns), "--json"])
    assert status in (0, 3)  # 3: no joules are known
    (window,) = json.loads(printed.getvalue())["windows"]
    return {component["name"]: component for component in window["components"]}


def windowed(path, start_ns, end_ns):
    """Return a Window over a span that is past."""
    now = iter([start_ns, end_ns])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(window_module, "time", SimpleNamespace(time_ns=lambda: next(now), sleep=lambda s: None))
        patch.setattr(process_module, "_COMMIT_S", -1.0)
        with Window("epoch", store=path) as window:
            pass
        with contextlib.suppress(WindowError):
            assert window.energy is not None
    return window


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(hosts(), st.integers(0, 9 * TICK), st.integers(10 * TICK, 22 * TICK))
def test_an_epoch_row_a_window_and_a_query_agree_to_the_last_bit(stored, tmp_path_factory, host, begin, stop):
    description, readings = host
    start_ns, end_ns = START + begin, START + stop
    path = tmp_path_factory.mktemp("agree") / "e.sqlite"
    with SqliteStore.create(path) as store:
        session = store.begin_session("n", START - S, TICK, description)
        store.append(readings)
        store.end_session(session, START + 4 * S, 0.0)
        kept = store.readings(start_ns - 3 * TICK, end_ns + 3 * TICK)
    energy = {
        "interval_ms": 100.0,
        "series": series_of(description["sensors"]),
        "unreadable": description["unreadable"],
    }
    data = stored()
    data = with_events(data, {"mono_ns": begin}, {"mono_ns": stop, "duration_ns": stop - begin})
    (row,) = make_epoch_rows(change(data, cell={"energy": energy}, readings=kept))

    components = queried(path, start_ns, end_ns)
    total = components["total"]
    figures = ("joules", "error_j", "accuracy_j")
    assert (row.total_j, row.energy_error_j, row.energy_accuracy_j) == tuple(total[name] for name in figures)
    for domain, joules in (("cpu", row.cpu_j), ("dram", row.dram_j), ("gpu", row.gpu_j), ("wall", row.wall_j)):
        assert joules == components.get(domain, {"joules": None})["joules"]

    window = windowed(path, start_ns, end_ns)
    if row.total_j is None:
        with pytest.raises(WindowError):
            assert window.joules
    else:
        assert (window.joules, window.error_j) == (row.total_j, row.energy_error_j)
        for name, joules in window.by_domain.items():
            if name == "module":
                continue  # a part of the total, and no column
            assert joules == getattr(row, f"{name}_j")
