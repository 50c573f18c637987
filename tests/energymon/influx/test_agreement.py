"""The bucket that a store's sender has filled holds what the store has."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from energymon import Reading, SqliteStore, Ticks
from energymon.reading import START, Event
from tests.energymon.influx.bucket import Bucket
from tests.energymon.influx.server import drain
from tests.energymon.influx.stores import STEP, T0, append, assert_whole

pytestmark = pytest.mark.process

names = st.text(st.characters(exclude_categories=("C", "Z")) | st.sampled_from(" ,=\\%'\"${}"), min_size=1, max_size=12)
texts = st.text(st.characters(exclude_categories=("Cs",)) | st.sampled_from('\n\r\\"nr'))


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(st.tuples(names, names, st.floats(allow_nan=False, allow_infinity=False)), min_size=1, max_size=8),
    st.lists(st.tuples(names, texts), max_size=8),
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
                    [Event(T0, node, kind, message) for kind, message in told],
                )
        drain(path, server.settings(bucket))
        with SqliteStore.open(path) as here, Bucket(server.settings(bucket)) as there:
            assert there.readings(T0, T0 + 10 * STEP) == here.readings(T0, T0 + 10 * STEP)
            assert there.sessions() == here.sessions()
            for node in {node for node, *_ in measured}:
                assert [e for e in there.events() if e.node == node] == [e for e in here.events() if e.node == node]
                assert there.readings(T0, T0, node) == here.readings(T0, T0, node)


def test_sending_everything_again_changes_nothing(server, bucket, make_store):
    store = make_store()
    append(store, 50)
    store.append([], news=[Event(T0, "n", "k", "m")] * 3)
    drain(store.path, server.settings(bucket))
    store._db.execute("DELETE FROM sent")
    drain(store.path, server.settings(bucket))
    assert_whole(store, server.settings(bucket))
