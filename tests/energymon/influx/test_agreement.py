"""The bucket that a store's sender has filled holds what the store has."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from energymon import Reading, SqliteStore, Ticks, joules
from energymon.reading import START, Baseline, ClockOffset, CounterStart, Event
from tests.energymon.influx.bucket import Bucket
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


def bucket_store(server, bucket):
    return Bucket(server.settings(bucket))


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
                store.begin_session(node, T0 + i, STEP, {"host": node})
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


def test_sending_everything_again_changes_nothing(server, bucket, make_store):
    store = make_store()
    readings = [Reading(T0 + k, T0 + k, "n", "package-0", "cpu", "rapl-perf", k / 7) for k in range(50)]
    store.append(readings, [Ticks(r.tick_ns, "n", False) for r in readings], [Event(T0, "n", "k", "m")] * 3)
    drain(store.path, server.settings(bucket))
    store._db.execute("DELETE FROM sent")
    drain(store.path, server.settings(bucket))
    with bucket_store(server, bucket) as there:
        assert_agree(store, there, [(T0, T0 + 100)])


SERIES_OF_N = ("n", "package-0", "cpu", "rapl-perf")
