"""The EMLIO paper's energy tuples in a real server: its query, sums that agree with windows, gaps, the dashboard."""

import json
import os
import re
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from energymon import EpochMark, Reading, Ticks, channels_of, energy_of
from energymon.analysis.tuples import EnergyTuple
from energymon.influx.cursor import StoreCursor
from energymon.influx.dashboard import apply_dashboard, template
from energymon.influx.lineprotocol import tuple_line
from energymon.reading import INTERPOLATED, START, CounterStart
from energymon.store import add_epochs
from tests.energymon.influx.server import ORG, REPO, drain
from tests.energymon.influx.stores import SERIES, STEP, T0, append

pytestmark = pytest.mark.process

PAPER = re.search(r'from\(bucket: "energy"\)\n.*?sum\(\)', (REPO / "docs/energy.md").read_text(), re.DOTALL)[0]
"""Sum over a window and a node, as section 3 of the paper describes it and the documentation shows it."""


def flux(server, bucket, text):
    client = server.settings(bucket).client()
    try:
        return [record.values for table in client.query_api().query(text) for record in table.records]
    finally:
        client.close()


def paper_sum(server, bucket, node, field, start_ns, end_ns):
    text = PAPER.replace('"energy"', f'"{bucket}"').replace('"cpu_energy"', f'"{field}"').replace("node-1", node)
    span = iter((start_ns, end_ns))
    found = flux(server, bucket, re.sub(r"20[-0-9T:]+Z", lambda _: f"time(v: {next(span)})", text))
    return sum(values["_value"] for values in found) if found else None


def stored_points(server, bucket, run=None):
    of_run = f' and r.run == "{run}"' if run else ""
    rows = flux(
        server,
        bucket,
        f'from(bucket: "{bucket}") |> range(start: 0) |> filter(fn: (r) => r._measurement == "tuples"{of_run})'
        ' |> pivot(rowKey: ["_time"], columnKey: ["_field"], valueColumn: "_value") |> sort(columns: ["_time"])',
    )
    return {round(row["_time"].timestamp() * 1000) * 1_000_000: row for row in rows}


def tuple_of(cpu=None, memory=None, gpu=None, sources=("", "", ""), flags="", devices=None):
    return EnergyTuple(T0, "n 1", cpu, memory, gpu, *sources, flags, devices or {})


@pytest.mark.parametrize(
    ("found", "fields"),
    [
        (
            tuple_of(1.5, 0.25, sources=("rapl-perf", "rapl-perf", "")),
            'cpu_energy=1.5,cpu_source="rapl-perf",memory_energy=0.25,memory_source="rapl-perf"',
        ),
        (
            replace(tuple_of(sources=("estimate", "", "")), cpu_energy_estimate=2.0),
            'cpu_energy_estimate=2.0,cpu_source="estimate"',
        ),
        (
            tuple_of(gpu=5.0, sources=("", "", "nvml-counter"), devices={"gpu": {"gpu-0": 2.0, "gpu-1": 3.0}}),
            'gpu_energy=5.0,gpu_source="nvml-counter",gpu_energy_gpu-0=2.0,gpu_energy_gpu-1=3.0',
        ),
        (
            tuple_of(1.0, sources=("rapl-perf", "", ""), flags=INTERPOLATED),
            'cpu_energy=1.0,cpu_source="rapl-perf",interpolated=true',
        ),
    ],
)
def test_a_tuple_is_one_point_and_an_estimate_is_never_a_measured_field(found, fields):
    assert tuple_line(found, "run=1") == f"tuples,node_id=n\\ 1,run=run\\=1 {fields} {T0}"


def test_the_sum_of_tuples_is_the_energy_of_the_window(server, bucket, make_store):
    store = make_store()
    append(store, 200)
    drain(store.path, server.settings(bucket))
    first, last = T0 + 20 * STEP, T0 + 120 * STEP
    (session,) = store.sessions()
    found = energy_of(store.readings(first, last), channels_of({}, "n"), first, last, STEP)
    for field, domain in (("cpu_energy", "cpu"), ("memory_energy", "dram"), ("gpu_energy", "gpu")):
        # The tuple of a tick has the joules before it, and Flux leaves out the end of a range.
        summed = paper_sum(server, bucket, "n", field, first + 1, last + 1)
        assert summed == pytest.approx(found.joules(domain), rel=1e-9)
    assert {row["run"] for row in stored_points(server, bucket).values()} == {session.name}


def test_missed_ticks_are_interpolated_and_marked_and_no_joule_is_lost(server, bucket, make_store):
    store = make_store()
    gap = range(40, 90)
    for k in range(140):
        readings = [Reading(T0 + k * STEP, T0 + k * STEP + 1000, "n", *SERIES[0], 2.0 * k)] if k not in gap else []
        store.append(readings, [Ticks(T0 + k * STEP, "n", k in gap)])
        if k in (20, 60, 100):
            tuple_lines(store, last=False)
    bucket_of_all = server.bucket()
    # Sent once more from the begin, to a server: what was sent while the gap was open must not differ.
    store._db.execute("DELETE FROM sent")
    drain(store.path, server.settings(bucket_of_all))
    rows = stored_points(server, bucket_of_all)
    marked = [(t_ns - T0) // STEP for t_ns, row in rows.items() if row.get("interpolated")]
    assert set(gap) <= set(marked) <= set(range(39, 92))
    whole = paper_sum(server, bucket_of_all, "n", "cpu_energy", T0 + 10 * STEP + 1, T0 + 130 * STEP + 1)
    assert whole == pytest.approx(2.0 * 120)


def tuple_lines(store, *, last=True):
    """Acknowledge all that comes; return the tuples among it by tick, which comes once."""
    found = {}
    with StoreCursor(store.path) as cursor:
        while (batch := cursor.next_batch(last=last)) is not None:
            cursor.acknowledge(batch)
            for line in batch.lines:
                if line.startswith("tuples"):
                    text, t_ns = line.rsplit(" ", 1)
                    assert int(t_ns) not in found, "sent twice"
                    found[int(t_ns)] = text
    return found


def test_tuples_wait_for_what_they_depend_on_and_are_the_same_however_often_they_are_taken(make_store):
    def lines(every):
        store = make_store(name=f"{every}.sqlite")
        store.append([], [])
        found = {}
        for k in range(60):
            # A board whose counter moves at every third tick.
            rows = [
                Reading(T0 + k * STEP, T0 + k * STEP + 1000, "n", *SERIES[0], 3.0 * k),
                Reading(T0 + k * STEP, T0 + k * STEP + 2000, "n", *SERIES[2], 7.0 * (k // 3)),
            ]
            store.append(rows if k not in (30, 31, 32) else [], [Ticks(T0 + k * STEP, "n", k in (30, 31, 32))])
            if k % every == 0 or k == 59:
                found |= tuple_lines(store, last=k == 59)
        return found

    at_once = lines(every=1000)
    assert len(at_once) == 58
    assert lines(every=1) == at_once
    assert lines(every=7) == at_once


def test_what_is_read_ahead_of_an_acknowledgement_is_what_comes_after_it(make_store):
    store = make_store()
    append(store, 6_000)
    ahead = 0
    with StoreCursor(store.path) as cursor:
        while (batch := cursor.next_batch(last=True)) is not None:
            following = cursor.next_batch(last=True, after=batch)
            assert cursor.next_batch(last=True) == batch, "reading ahead has changed the store"
            cursor.acknowledge(batch)
            if following is not None:
                assert cursor.next_batch(last=True) == following
                ahead += 1
        assert cursor.unsent() == 0
    assert ahead > 3


def test_a_series_that_is_lost_for_long_does_not_hold_the_others_back(make_store):
    store = make_store()
    for k in range(400):
        rows = [Reading(T0 + k * STEP, T0 + k * STEP + 1000, "n", *SERIES[0], 3.0 * k)]
        rows += [Reading(T0 + k * STEP, T0 + k * STEP + 2000, "n", *SERIES[2], 7.0 * k)] if k < 20 else []
        store.append(rows, [Ticks(T0 + k * STEP, "n", k >= 20)])
    fields = list(tuple_lines(store, last=False).values())
    assert len(fields) > 390
    assert "gpu_energy" in fields[5]
    assert "gpu_energy" not in fields[100]
    assert "cpu_energy=" in fields[-1]


def test_epochs_are_points_with_run_loader_and_cell(server, bucket, make_store):
    store = make_store()
    append(store, 10)
    marks = [EpochMark("n", "run 1", "cell-a", "dali", n, T0 + n * STEP, T0 + (n + 1) * STEP) for n in (1, 2)]
    add_epochs(store.path, marks)
    drain(store.path, server.settings(bucket))
    rows = flux(
        server,
        bucket,
        f'from(bucket: "{bucket}") |> range(start: 0) |> filter(fn: (r) => r._measurement == "epochs")'
        ' |> pivot(rowKey: ["_time"], columnKey: ["_field"], valueColumn: "_value")',
    )
    columns = ("run", "cell", "loader", "node_id", "epoch", "start_ns", "end_ns")
    assert [{key: row[key] for key in columns} for row in rows] == [
        {
            "run": "run 1",
            "cell": "cell-a",
            "loader": "dali",
            "node_id": "n",
            "epoch": mark.epoch,
            "start_ns": mark.start_ns,
            "end_ns": mark.end_ns,
        }
        for mark in marks
    ]
    assert [row["duration_s"] for row in rows] == pytest.approx([0.1, 0.1])


def test_the_dashboard_is_made_once_and_its_queries_work(server, bucket, make_store):
    store = make_store(start_ns=time.time_ns() - 60 * 10**9)
    t_ns = time.time_ns() // STEP * STEP - 300 * STEP
    for k in range(200):
        store.append(
            [Reading(t_ns + k * STEP, t_ns + k * STEP + 1000, "n", *SERIES[0], 10.0 * k)],
            [Ticks(t_ns + k * STEP, "n", False)],
        )
    (session,) = store.sessions()
    add_epochs(store.path, [EpochMark("n", session.name, "cell-a", "dali", 1, t_ns + STEP, t_ns + 100 * STEP)])
    drain(store.path, server.settings(bucket))
    argv = [sys.executable, "-m", "energymon", "dashboard", "--url", server.url, "--org", ORG, "--bucket", bucket]
    environment = {**os.environ, "INFLUXDB_V2_TOKEN": server.token}
    told = [
        json.loads(subprocess.run(argv, cwd=REPO, env=environment, capture_output=True, check=True).stdout)
        for _ in range(2)
    ]
    assert [one["changed"] for one in told] == [True, False]
    assert told[0]["dashboard"] == told[1]["dashboard"]
    board = told[0]["dashboard"].rpartition("/")[2]
    server.call("DELETE", f"/api/v2/dashboards/{board}")
    assert apply_dashboard(server.settings(bucket))["changed"]
    variable, dashboard = (one["spec"] for one in template(bucket))
    option = (
        f'option v = {{timeRangeStart: -1h, timeRangeStop: now(), windowPeriod: 1s, joulefeed_run: "{session.name}"}}\n'
    )
    assert [row["_value"] for row in flux(server, bucket, variable["query"])] == [session.name]
    power, epochs, joules, table = (
        flux(server, bucket, option + chart["queries"][0]["query"]) for chart in dashboard["charts"]
    )
    assert [row["_value"] for row in power] == pytest.approx([100.0] * len(power))
    assert len(power) > 10
    assert {row["node_id"] for row in power} == {"n"}
    # The corners of a rectangle: the UI draws lines between them.
    assert [(row["loader"], row["_value"]) for row in epochs] == [("dali", height) for height in (0.0, 1.0, 1.0, 0.0)]
    sent = [row["cpu_energy"] for row in stored_points(server, bucket).values()]
    assert [row["_value"] for row in joules] == pytest.approx([sum(sent)])
    assert [row["cell"] for row in table] == ["cell-a"]


def test_an_agent_that_is_started_again_loses_no_joules(make_store):
    store = make_store()
    for k in range(40):
        if k == 20:
            store.begin_session("n", T0 + 20 * STEP, STEP, {"host": "n", "run": "second"})
        if not 17 <= k <= 21:
            flags = START if k == 22 else ""
            joules = 3.0 * (k - 22 if k >= 22 else k)
            reading = Reading(T0 + k * STEP, T0 + k * STEP + 1000, "n", *SERIES[0], joules, flags)
            store.append([reading], [Ticks(T0 + k * STEP, "n", False)], news=_counters(k, joules))
    found = tuple_lines(store)
    assert [(t_ns - T0) // STEP for t_ns in found] == [*range(2, 40)]
    joules = [float(line.partition("cpu_energy=")[2].partition(",")[0]) for line in found.values()]
    assert joules == pytest.approx([3.0] * 38)
    assert ["run=second" in line for line in found.values()] == [False] * 15 + [True] * 23


def _counters(k, joules):
    """What the hardware's counter showed at the start of both agents."""
    if k not in (0, 22):
        return []
    t_ns = T0 + k * STEP
    return [
        CounterStart(
            "n", *SERIES[0], t_ns, t_ns + 1000, t_ns, "boot", joules, 1000 * 3 * k, 0.001, 2**40, 400.0, "zone"
        )
    ]
