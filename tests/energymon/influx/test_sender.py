"""The sender's process against a real server that goes away, comes back, and refuses."""

import json
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from energymon import Event
from energymon.influx.cursor import StoreCursor
from energymon.influx.sender import backoff_s
from joulefeed.server import find_free_port
from tests.energymon.influx.bucket import Bucket
from tests.energymon.influx.server import REPO, SenderProcess, Server, drain
from tests.energymon.influx.stores import STEP, T0, append, assert_whole

pytestmark = pytest.mark.process


@pytest.fixture
def send(server, bucket, make_store, start_sender):
    """Make a store of so many ticks and start a sender on it, by default to the server; return both."""

    def start(count, *options, **environment):
        store = make_store()
        append(store, count)
        return store, start_sender(store.path, {**server.environment(bucket), **environment}, *options)

    return start


@pytest.fixture
def assert_sent(server, bucket):
    """Assert that the bucket has every reading and tick of a store, once."""
    return lambda store: assert_whole(store, server.settings(bucket))


def test_what_an_agent_appends_is_sent_while_it_writes_and_the_rest_at_its_end(bucket, send, assert_sent):
    store, sender = send(20, "--until-eof")
    sender.wait_for("sending", bucket)
    append(store, 20, first=20)
    store.append([], news=[Event(T0, "n", "sensor-lost", 'a "message",\nwith = all \\ of it')])
    store.end_session(store.sessions()[0], T0 + 10, 0.25)
    assert sender.end() == 0
    assert sender.told[-1]["state"] == "drained"
    assert sender.told[-1]["unsent"] == 0
    assert_sent(store)


def test_a_server_that_never_comes_costs_disk_only(server, bucket, send, start_sender, assert_sent):
    server.stop()
    store, sender = send(4_000, "--until-eof", "--drain-s", "1")
    sender.wait_for("waiting")
    sender.process.stdin.close()
    peak_kb = sender.peak()
    assert sender.end() == 1
    assert peak_kb < 200_000
    last = sender.told[-1]
    assert last["state"] == "waiting"
    assert last["unsent"] == 12_000
    assert f"--store {store.path}" in last["message"]
    server.start()
    assert start_sender(store.path, server.environment(bucket)).end(close=False) == 0
    assert_sent(store)


def test_a_server_that_is_restarted_again_and_again_gets_every_batch_once(server, send, assert_sent):
    store, sender = send(5_000, "--drain-s", "60")
    draw = random.Random(1)
    for _ in range(4):
        time.sleep(draw.uniform(0.05, 0.4))
        server.kill()
        server.start()
    assert sender.end(close=False) == 0
    assert_sent(store)


def test_a_sender_that_is_killed_at_any_moment_loses_and_doubles_nothing(server, bucket, make_store, assert_sent):
    store = make_store()
    append(store, 10_000)
    environment = server.environment(bucket)
    draw = random.Random(2)
    left = []
    for _ in range(6):
        sender = SenderProcess(store.path, environment)
        time.sleep(draw.uniform(0.6, 1.2))
        sender.kill()
        with StoreCursor(store.path) as cursor:
            left.append(cursor.unsent())
        if not left[-1]:
            break
    drain(store.path, server.settings(bucket))
    assert_sent(store)


def test_a_token_that_is_wrong_is_named_with_the_remedy_and_a_better_one_is_taken(server, send, assert_sent, tmp_path):
    file = tmp_path / "token"
    file.write_text("wrong-token\n")
    file.chmod(0o600)
    store, sender = send(10, "--until-eof", INFLUXDB_V2_TOKEN_FILE=str(file))
    refused = sender.wait_for("refused", "401")
    assert "INFLUXDB_V2_TOKEN" in refused["message"]
    assert server.url in refused["message"]
    file.write_text(server.token)
    sender.wait_for("sending")
    assert sender.end() == 0
    assert_sent(store)
    assert b"wrong-token" not in sender.output


def test_poisoned_lines_are_set_aside_and_nothing_else(server, bucket, make_store, start_sender):
    store = make_store()
    append(store, 400)
    good = store.readings(T0, T0 + 1000 * STEP)
    for k in (3, 200, 399):
        store._db.execute("UPDATE readings SET joules = ? WHERE tick_ns = ? AND series_id = 2", (1e999, T0 + k * STEP))
    sender = start_sender(store.path, server.environment(bucket))
    assert sender.end(close=False) == 0
    assert "3 points" in sender.wait_for("set-aside")["message"]
    aside = store._db.execute("SELECT line, reason FROM rejected ORDER BY id").fetchall()
    assert len(aside) == 3
    assert all("joules=inf" in line and reason for line, reason in aside)
    with Bucket(server.settings(bucket)) as there:
        got = there.readings(T0, T0 + 1000 * STEP)
    bad = {(T0 + k * STEP, "dram") for k in (3, 200, 399)}
    assert got == [r for r in good if (r.tick_ns, r.domain) not in bad]


def test_points_older_than_the_bucket_keeps_are_set_aside_in_one_go(server, make_store, start_sender):
    store = make_store()
    append(store, 5000)
    sender = start_sender(store.path, server.environment(server.bucket(seconds=3600)))
    assert sender.end(close=False) == 0
    told = [t["message"] for t in sender.told if t["state"] == "set-aside"]
    assert "retention" in told[0]
    assert store._db.execute("SELECT count(*) FROM rejected").fetchone()[0] >= 20_000


class Gate(ThreadingHTTPServer):
    """A proxy before the server that answers for it while it has answers of its own."""

    def __init__(self, server: Server, max_bytes: int | None = None) -> None:
        super().__init__(("127.0.0.1", find_free_port()), _GateHandler)
        self.server_port_behind = server.port
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.max_bytes = max_bytes
        self.own: list[tuple[int, dict[str, str]] | tuple[int, dict[str, str], bytes]] = []
        self.posts: list[tuple[int, int, float]] = []
        self.thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def close(self) -> None:
        self.shutdown()
        self.thread.join()
        self.server_close()


class _GateHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        import http.client

        gate = self.server
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if gate.max_bytes is not None and len(body) > gate.max_bytes:
            status, headers, answer = 413, {}, b""
        elif gate.own:
            status, headers, *page = gate.own.pop(0)
            answer = page[0] if page else b""
        else:
            behind = http.client.HTTPConnection("127.0.0.1", gate.server_port_behind)
            behind.request("POST", self.path, body, {"Authorization": self.headers["Authorization"]})
            response = behind.getresponse()
            status, headers, answer = response.status, {}, response.read()
            behind.close()
        gate.posts.append((status, len(body), time.monotonic()))
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def gate(server):
    gate = Gate(server)
    yield gate
    gate.close()


def test_a_request_that_is_too_large_is_halved_until_it_passes(gate, send, assert_sent):
    gate.max_bytes = 100_000
    store, sender = send(1000, INFLUXDB_V2_URL=gate.url)
    assert sender.end(close=False) == 0
    assert any(status == 413 for status, *_ in gate.posts)
    assert_sent(store)


def test_a_server_that_asks_for_a_pause_gets_one(gate, send, assert_sent):
    gate.own = [(429, {"Retry-After": "2"}), (503, {}), (500, {})]
    store, sender = send(10, INFLUXDB_V2_URL=gate.url)
    assert sender.end(close=False) == 0
    (_, _, first), (_, _, second), *_ = gate.posts
    assert second - first >= 2
    assert [status for status, *_ in gate.posts][:3] == [429, 503, 500]
    assert_sent(store)


def test_a_server_that_refuses_every_request_alike_gets_no_line_set_aside(gate, send):
    gate.own = [(400, {})] * 10_000
    store, sender = send(4, INFLUXDB_V2_URL=gate.url)
    assert sender.end(close=False) == 1
    sender.wait_for("refused", "takes no request at all")
    assert store._db.execute("SELECT count(*) FROM rejected").fetchone() == (0,)
    assert sender.told[-1]["unsent"] == 12


PAGE = "<html><title>Anmeldung für das Gästenetz</title></html>".encode("latin-1")
HTML = {"Content-Type": "text/html"}


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ((200, HTML, PAGE), "answered a write with 200 (text/html: '<html><title>Anmeldung"),
        ((200, {}), "answered a write with 200 (nothing more)"),
        ((202, {}), "answered a write with 202"),
        ((302, {"Location": "http://127.0.0.1:1/"}), "answered 302"),
    ],
)
def test_an_answer_that_is_not_204_stores_nothing_and_is_told(gate, send, assert_sent, own, words):
    gate.own = [own] * 1000
    store, sender = send(10, "--until-eof", INFLUXDB_V2_URL=gate.url)
    refused = sender.wait_for("refused", words)
    assert refused["unsent"] == 30
    gate.own = []
    sender.wait_for("sending")
    assert sender.end() == 0
    assert_sent(store)


def test_the_sender_of_a_second_agent_waits_until_that_of_the_first_has_ended(
    server, bucket, send, start_sender, assert_sent
):
    store, first = send(5, "--until-eof")
    first.wait_for("sending")
    second = start_sender(store.path, server.environment(bucket), "--until-eof")
    second.wait_for("waiting", "another sender")
    first.kill()
    append(store, 5, first=5)
    second.wait_for("sending")
    assert second.end() == 0
    assert_sent(store)


@pytest.fixture
def silent():
    """A server that takes connections and answers nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        listener.settimeout(60)
        yield listener


@pytest.mark.parametrize("end", ["eof", "sigterm"])
@pytest.mark.parametrize("away", ["refused", "silent"])
def test_a_sender_whose_server_is_away_ends_soon_and_loses_nothing(
    server, bucket, silent, send, assert_sent, away, end
):
    url = f"http://127.0.0.1:{silent.getsockname()[1] if away == 'silent' else find_free_port()}"
    store, sender = send(10, "--until-eof", INFLUXDB_V2_URL=url)
    if away == "refused":
        sender.wait_for("waiting")
    else:
        connection = silent.accept()[0]
        assert connection.recv(1)
    if end == "sigterm":
        sender.process.send_signal(signal.SIGTERM)
    assert sender.end(close=end == "eof") == 1
    assert not [told for told in sender.told if "within 10 s" in told["message"]], (
        "it waited for the server's whole limit"
    )
    if away == "silent":
        connection.close()
    assert sender.told[-1]["unsent"] == 30
    assert f"--store {store.path}" in sender.told[-1]["message"]
    drain(store.path, server.settings(bucket))
    assert_sent(store)


def test_tls_works_and_a_certificate_of_a_stranger_is_refused(
    influxd, certificate, server, make_store, start_sender, tmp_path
):
    secure = Server(influxd, tmp_path / "data", *certificate)
    try:
        store = make_store()
        append(store, 50)
        environment = secure.environment("first")
        stranger = start_sender(store.path, environment)
        assert stranger.end(close=False) == 1
        assert "INFLUXDB_V2_SSL_CA_CERT" in stranger.wait_for("refused", "no TLS")["message"]
        trusting = {**environment, "INFLUXDB_V2_SSL_CA_CERT": str(certificate[0])}
        assert start_sender(store.path, trusting).end(close=False) == 0
        from energymon.influx.settings import InfluxSettings

        assert_whole(store, InfluxSettings.from_environment(trusting))
        plain = {**trusting, "INFLUXDB_V2_URL": secure.url.replace("https", "http")}
        append(store, 1, first=50)
        wrong = {**trusting, "INFLUXDB_V2_URL": server.url.replace("http:", "https:")}
        for environment in (plain, wrong):
            mistaken = start_sender(store.path, environment, "--drain-s", "1")
            assert mistaken.end(close=False) == 1
        mistaken.wait_for("refused", "no TLS")
    finally:
        secure.kill()


def test_the_token_is_nowhere_to_be_seen(server, bucket, gate, make_store, start_sender):
    store = make_store()
    gate.own = [(401, {}), (500, {}), (400, {})]
    outputs = []
    environments = (
        server.environment(bucket),
        {**server.environment(bucket), "INFLUXDB_V2_URL": gate.url},
        {**server.environment(bucket), "INFLUXDB_V2_TOKEN": server.token + "\nx"},
        {**server.environment(bucket), "INFLUXDB_V2_URL": f"http://u:{server.token}@127.0.0.1:1"},
        {**server.environment(bucket), "INFLUXDB_V2_BUCKET": "absent"},
    )
    for i, environment in enumerate(environments):
        append(store, 5, first=5 * i)
        sender = start_sender(store.path, environment, "--until-eof", "--drain-s", "1")
        assert server.token not in " ".join(map(str, sender.process.args))
        sender.wait_for("")
        sender.end()
        outputs.append(sender.output)
    assert all(outputs)
    assert server.token.encode() not in b"".join(outputs)
    for file in store.path.parent.iterdir():
        assert server.token.encode() not in file.read_bytes()


def test_settings_that_are_missing_end_the_sender_with_what_was_expected(make_store):
    store = make_store()
    sender = subprocess.run(
        [sys.executable, "-m", "energymon", "send", "--store", store.path],
        cwd=REPO,
        env={},
        capture_output=True,
        check=False,
    )
    assert sender.returncode == 2
    assert "INFLUXDB_V2_URL" in json.loads(sender.stdout)["message"]


@pytest.mark.slow
def test_the_limit_is_kept_by_deleting_what_was_sent(server, bucket, make_store, start_sender):
    store = make_store()
    append(store, 10_000)
    drain(store.path, server.settings(bucket))
    size = store.path.stat().st_size
    limit_mb = 1.3 * size / 1e6
    limit = ("--spool-limit-mb", str(limit_mb), "--drain-s", "60")
    sender = start_sender(store.path, server.environment(bucket), "--until-eof", *limit)
    append(store, 20_000, first=10_000)
    assert sender.end() == 0
    with StoreCursor(store.path) as cursor:
        assert cursor.trim(round(limit_mb * 1e6))
    assert store.used_bytes() < limit_mb * 1e6
    assert store.path.stat().st_size < 1.1 * limit_mb * 1e6 + 4e6
    left = store.readings(T0 + 30_000 * STEP, T0 + 30_000 * STEP)
    assert left[-1].tick_ns == T0 + 29_999 * STEP
    with Bucket(server.settings(bucket)) as there:
        assert len(there.readings(T0, T0 + 40_000 * STEP)) == 90_000


def test_a_limit_that_unsent_readings_reach_is_told_loudly(server, send):
    server.stop()
    store, sender = send(5_000, "--until-eof", "--spool-limit-mb", "0.3")
    message = sender.wait_for("refused", "limit")["message"]
    assert "--spool-limit-mb" in message
    sender.kill()
    with StoreCursor(store.path) as cursor:
        assert cursor.unsent() == 15_000


def test_the_backoff_grows_to_half_a_minute_with_jitter():
    assert [backoff_s(n, lambda: 1.0) for n in (1, 2, 3, 6, 7, 100)] == [0.5, 1.0, 2.0, 16.0, 30.0, 30.0]
    assert backoff_s(3, lambda: 0.0) == 1.0
