"""The same answers from the SQLite store and from the bucket that its sender has filled."""

import tempfile
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from energymon import Reading, SqliteStore, StoreError, Ticks, joules, open_store
from energymon.influx.settings import InfluxSettings
from energymon.influx.store import InfluxStore
from energymon.reading import INTERPOLATED, START, Baseline, ClockOffset, CounterStart, Event
from energymon.sensors.counter import Counter
from tests.energymon.influx.server import drain

pytestmark = pytest.mark.process

MS = 1_000_000
T0 = 1_700_000_000_000 * MS
STEP = 100 * MS
SERIES = [("package-0", "cpu", "rapl-perf"), ("package-0", "dram", "rapl-perf"), ("gpu-0", "gpu", "nvml-counter")]
UNIT_J = 6.103515625e-05
WRAP = 2**20
slow = settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))

names = st.text(st.characters(exclude_categories=("C", "Z")) | st.sampled_from(" ,=\\%'\"${}"), min_size=1, max_size=12)


def bucket_store(server, bucket, session=None):
    return InfluxStore(server.settings(bucket), session)


@st.composite
def lives(draw):
    """A node's agents, one after the other: per life its readings and ticks, with wraps, gaps and restarts."""
    found = []
    k = draw(st.integers(0, 5))
    for _ in range(draw(st.integers(1, 3))):
        readings, ticks = [], []
        start_ns = T0 + k * STEP - draw(st.integers(1, STEP - 1))
        chosen = draw(st.lists(st.sampled_from(SERIES), min_size=1, max_size=3, unique=True))
        counters = {s: Counter(unit_j=UNIT_J, wrap=WRAP, max_w=1e6, lag_s=0.001) for s in chosen}
        raw = {series: draw(st.integers(0, WRAP - 1)) for series in chosen}
        gap = False
        for _ in range(draw(st.integers(1, 25))):
            tick_ns = T0 + k * STEP
            k += draw(st.sampled_from([1, 1, 1, 1, 1, 1, 2, 30, 70_000]))
            missed = draw(st.integers(0, 5)) == 0
            seen = chosen[1:] if missed else chosen
            for series in seen:
                raw[series] = (raw[series] + draw(st.integers(1, WRAP // 2))) % WRAP
                t_ns = tick_ns + draw(st.integers(0, 2 * STEP))
                value, flags = counters[series].update(raw[series], tick_ns)
                flags = flags or (INTERPOLATED if gap else "")
                readings.append(Reading(tick_ns, t_ns, "n", *series, value, flags))
            ticks.append(Ticks(tick_ns, "n", missed))
            gap = missed
        found.append((start_ns, readings, ticks))
        k += draw(st.integers(0, 3))
    return found


def fill(path, found, node="n"):
    for i, (start_ns, readings, ticks) in enumerate(found):
        with SqliteStore.create(path) as store:
            session = store.begin_session(node, start_ns, STEP, {"life": i}, sends=True)
            for at in range(0, len(ticks), 5):
                chunk = {tick.first_ns for tick in ticks[at : at + 5]}
                store.append([r for r in readings if r.tick_ns in chunk], ticks[at : at + 5])
            if i % 2 == 0:
                store.end_session(session, ticks[-1].first_ns, 0.1 + i)


def assert_agree(here, there, windows):
    for start_ns, end_ns in windows:
        expected, got = here.readings(start_ns, end_ns), there.readings(start_ns, end_ns)
        assert got == expected
        assert there.ticks(start_ns, end_ns) == here.ticks(start_ns, end_ns)
        for one, other in zip(
            joules(expected, start_ns, end_ns, STEP), joules(got, start_ns, end_ns, STEP), strict=True
        ):
            assert abs(one.joules - other.joules) <= 1e-9
    assert there.sessions() == here.sessions()
    assert there.events() == here.events()
    assert there.clocks() == here.clocks()
    assert there.baselines() == here.baselines()
    assert there.counters() == here.counters()


@slow
@given(data=st.data(), found=lives())
def test_both_stores_answer_alike_whatever_wraps_gaps_and_restarts_there_were(server, data, found):
    bucket = server.bucket()
    last = max(tick.first_ns for *_, ticks in found for tick in ticks)
    instants = st.integers(T0 - STEP, last + 2 * STEP)
    windows = [sorted((data.draw(instants), data.draw(instants))) for _ in range(3)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "e.sqlite")
        fill(path, found)
        drain(path, server.settings(bucket))
        with SqliteStore.open(path) as here, bucket_store(server, bucket) as there:
            assert_agree(here, there, windows)


@slow
@given(
    st.lists(st.tuples(names, names, st.floats(allow_nan=False, allow_infinity=False)), min_size=1, max_size=8),
    st.lists(
        st.tuples(names, st.text(st.characters(exclude_categories=("Cs",)) | st.sampled_from('\n\r\\"nr'))), max_size=8
    ),
)
def test_names_messages_and_every_float_come_back_exactly(server, measured, told):
    bucket = server.bucket()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "e.sqlite")
        with SqliteStore.create(path) as store:
            for i, (node, device, value) in enumerate(measured):
                store.begin_session(node, T0 + i, STEP, {"host": node}, sends=True)
                store.append(
                    [Reading(T0 + i * STEP, T0 - i, node, device, "cpu", "estimate", value, START)],
                    [Ticks(T0 + i * STEP, node, False)],
                    [
                        *(Event(T0, node, kind, message) for kind, message in told),
                        ClockOffset(T0 - i, node, device, -(2**60) + i, 2**55 + 1),
                        Baseline(node, device, "cpu", "estimate", T0 + i, T0 + 2 * i, value, value if i % 2 else None),
                        CounterStart(
                            *(node, device, "cpu", "estimate", T0 + i * STEP, T0 - i, -i, device, value, 2**63 - 1 - i),
                            *(value, 2**40 + i if i % 2 else None, value, device),
                        ),
                    ],
                )
        drain(path, server.settings(bucket))
        with SqliteStore.open(path) as here, bucket_store(server, bucket) as there:
            assert there.readings(T0, T0 + 10 * STEP) == here.readings(T0, T0 + 10 * STEP)
            assert there.clocks() == here.clocks()
            assert there.baselines() == here.baselines()
            assert there.counters() == here.counters()
            assert there.sessions() == here.sessions()
            for node in {node for node, *_ in measured}:
                assert [e for e in there.events() if e.node == node] == [e for e in here.events() if e.node == node]
                assert there.readings(T0, T0, node) == here.readings(T0, T0, node)


def test_a_series_that_ended_long_before_the_window_is_found(server, bucket, make_store):
    store = make_store()
    old = [Reading(T0 + k * STEP, T0 + k * STEP, "n", "package-0", "cpu", "rapl-perf", float(k)) for k in range(100)]
    day = 864_000
    new = [Reading(T0 + k * STEP, T0 + k * STEP, "n", "gpu-0", "gpu", "nvml-counter", 0.5) for k in range(day, day + 9)]
    store.append(old)
    store.append(new)
    drain(store.path, server.settings(bucket))
    with bucket_store(server, bucket) as there:
        for window in [(new[3].tick_ns, new[5].tick_ns), (old[-1].tick_ns + 1, new[0].tick_ns - 1), (T0 - 5, T0 - 1)]:
            assert there.readings(*window) == store.readings(*window)


def test_sending_everything_again_changes_nothing(server, bucket, make_store):
    store = make_store()
    readings = [Reading(T0 + k, T0 + k, "n", "package-0", "cpu", "rapl-perf", k / 7) for k in range(50)]
    store.append(readings, [Ticks(r.tick_ns, "n", False) for r in readings], [Event(T0, "n", "k", "m")] * 3)
    drain(store.path, server.settings(bucket))
    store._db.execute("INSERT INTO outbox VALUES (99, 1, ?, ?, 50)", (T0, T0 + 50))
    store._db.execute("UPDATE sessions SET sent = 0")
    store._db.execute("DELETE FROM sent")
    drain(store.path, server.settings(bucket))
    with bucket_store(server, bucket) as there:
        assert_agree(store, there, [(T0, T0 + 100)])


def test_a_tick_that_two_lives_of_one_store_share_is_one_reading(server, bucket, tmp_path):
    shared = Reading(T0 + STEP, T0 + STEP, "n", "package-0", "cpu", "rapl-perf", 1.0)
    first = (T0, [shared], [Ticks(T0 + STEP, "n", False)])
    later = Reading(T0 + 2 * STEP, T0 + 2 * STEP, *SERIES_OF_N, 2.0)
    second = (T0 + 1, [shared, later], [Ticks(T0 + STEP, "n", False)])
    fill(tmp_path / "e.sqlite", [first, second])
    drain(tmp_path / "e.sqlite", server.settings(bucket))
    with SqliteStore.open(tmp_path / "e.sqlite") as here, bucket_store(server, bucket) as there:
        assert_agree(here, there, [(T0, T0 + 3 * STEP)])


SERIES_OF_N = ("n", "package-0", "cpu", "rapl-perf")


def test_two_agents_that_wrote_one_node_at_once_are_refused_unless_one_is_chosen(server, bucket, make_store):
    stores = [make_store(name=f"{i}.sqlite", start_ns=T0 + i) for i in range(2)]
    for i, store in enumerate(stores):
        rows = [Reading(T0 + k * STEP, T0 + k * STEP, *SERIES_OF_N, 10.0 * k + i) for k in range(20)]
        store.append(rows, [Ticks(r.tick_ns, "n", False) for r in rows])
        drain(store.path, server.settings(bucket))
    one, other = (store.sessions()[0].name for store in stores)
    with bucket_store(server, bucket) as there, pytest.raises(StoreError, match=f"{one} and {other}"):
        there.readings(T0, T0 + 10 * STEP)
    with bucket_store(server, bucket, session=one) as there:
        assert_agree(stores[0], there, [(T0, T0 + 10 * STEP)])


def test_nobody_gets_a_query_of_his_own_through_a_name(server, bucket, make_store):
    store = make_store(node="secret")
    store.append([Reading(T0, T0, "secret", "package-0", "cpu", "rapl-perf", 1.0)])
    drain(store.path, server.settings(bucket))
    with bucket_store(server, bucket) as there:
        for name in ['x" or true or r.node == "', "${1}", "x' OR node =~ /.*/ OR node = '", "x\\", "\n", "') --"]:
            assert there.readings(T0, T0, name) == []
            assert there.ticks(T0, T0 + 1, name) == []


def test_a_store_is_found_by_path_and_by_address(server, bucket, make_store, monkeypatch):
    store = make_store()
    for name, value in server.environment(bucket).items():
        monkeypatch.setenv(name, value)
    with open_store(store.path) as here, open_store(server.url) as there:
        assert isinstance(here, SqliteStore)
        assert isinstance(there, InfluxStore)
        assert there.readings(0, 1) == []


def test_what_is_wrong_with_a_server_is_named(server, bucket, monkeypatch):
    for name, value in server.environment(bucket).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("INFLUXDB_V2_TOKEN", "wrong-token")
    with open_store(server.url) as there, pytest.raises(StoreError, match="does not know the token") as caught:
        there.sessions()
    assert "wrong-token" not in str(caught.value)
    monkeypatch.setenv("INFLUXDB_V2_TOKEN", server.token)
    monkeypatch.setenv("INFLUXDB_V2_BUCKET", "absent")
    with open_store(server.url) as there, pytest.raises(StoreError, match="'absent'"):
        there.sessions()
    server.stop()
    with pytest.raises(StoreError, match="Connection refused"):
        open_store(server.url)


class LoginPage(BaseHTTPRequestHandler):
    """What a proxy shows in the place of every answer, but for the ping that it lets through."""

    version = ""

    def do_GET(self):
        self.answer(b"")

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.answer("<html>Anmeldung für Gäste</html>".encode("latin-1"))

    def answer(self, body):
        self.send_response(200)
        for name, value in {"X-Influxdb-Version": self.version, "Content-Type": "text/html"}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.mark.parametrize("version", ["2.7.1", "3.1.0"])
def test_a_page_in_the_place_of_an_answer_is_told(version):
    page = type("Page", (LoginPage,), {"version": version})
    with HTTPServer(("127.0.0.1", 0), page) as proxy, ThreadPoolExecutor(1) as thread:
        thread.submit(proxy.serve_forever, 0.01)
        url = f"http://127.0.0.1:{proxy.server_port}"
        told = r"200 \(text/html: '<html>Anmeldung"
        with InfluxStore(InfluxSettings(url, "b", token="t")) as store, pytest.raises(StoreError, match=told):
            store.sessions()
        proxy.shutdown()
