"""A real InfluxDB server; where none can be found or built these tests fail, for they are never skipped."""

import subprocess

import pytest

from energymon import SqliteStore
from tests.energymon.influx.server import SenderProcess, Server, binary


@pytest.fixture(scope="session")
def influxd():
    """The server's program."""
    return binary()


@pytest.fixture(scope="module")
def shared_server(influxd, tmp_path_factory):
    """The one server of a module, and gone with it: tests elsewhere count this process's children."""
    server = Server(influxd, tmp_path_factory.mktemp("influxdb") / "data")
    yield server
    server.kill()


@pytest.fixture
def server(shared_server):
    """The server, running whatever the test before has done to it."""
    shared_server.start()
    return shared_server


@pytest.fixture
def bucket(server):
    """An empty bucket."""
    return server.bucket()


@pytest.fixture(scope="session")
def certificate(tmp_path_factory):
    """A certificate for localhost that signs itself, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = folder / "ca.pem", folder / "key.pem"
    make = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    subprocess.run([*make.split(), "-keyout", key, "-out", certificate], check=True, capture_output=True)
    return certificate, key


@pytest.fixture
def make_store(tmp_path):
    """Make a store that queues what is appended for the sender."""
    stores = []

    def make(node="n", name="energy.sqlite", interval_ns=100_000_000, start_ns=1_700_000_000_000_000_000):
        store = SqliteStore.create(tmp_path / name)
        store.begin_session(node, start_ns, interval_ns, {"host": node})
        stores.append(store)
        return store

    yield make
    for store in stores:
        store.close()


@pytest.fixture
def start_sender():
    """Start a sender on a store; options as on its command line."""
    senders = []

    def start(store, environment, *options):
        senders.append(SenderProcess(store, environment, *options))
        return senders[-1]

    yield start
    for sender in senders:
        sender.kill()
