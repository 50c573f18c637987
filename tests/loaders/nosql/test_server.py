"""A real Cassandra server: prepared, started, refused, served from, stored in, and gone at its end."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pytest

from harness.testbed.caches import drop_caches
from joulefeed.child import Child
from joulefeed.server import find_free_port
from loaders.errors import LoaderConfigError, ShardError, SplitError, StreamError
from loaders.nosql import NoSQLLoader
from loaders.nosql.form import open_form, prepare
from loaders.nosql.ingest import ingest
from loaders.nosql.keys import CLIENT_KEY, Login, load_client_keys, make_keys
from loaders.nosql.schema import DatabaseTable, sample_uuid
from loaders.nosql.server.installation import DatabaseServerError
from loaders.nosql.server.process import CassandraServer
from loaders.nosql.session import open_session
from loaders.nosql.splits import fetch_metadata
from loaders.records.shards.convert import convert
from loaders.records.shards.index import ShardSet
from tests.loaders.small_data import write_samples

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

REPO = Path(__file__).parents[3]
SAMPLES = 600
"""More than are stored at once."""
READY_S, GONE_S = 120.0, 30.0


class KilledError(Exception):
    """What ends a preparation."""


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root, random = tmp_path_factory.mktemp("files"), np.random.default_rng(0)
    files = [(f"{k:03d}.bin", random.bytes(int(random.integers(1, 3000)))) for k in range(SAMPLES)]
    patient = pa.array([f"p{k % 50}" if k % 3 else None for k in range(SAMPLES)])
    boxes = pa.array([[float(k)] * (k % 3) for k in range(SAMPLES)], pa.list_(pa.float64()))
    samples = write_samples(root, files, classes=7, patient=patient, boxes=boxes)
    return convert(samples, root / "shards", key="first", seed=1, shard_bytes=int(samples.sizes.sum()) // 3)


@pytest.fixture(scope="module")
def prepared(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of tables."""
    folder = tmp_path_factory.mktemp("forms") / "form"
    prepare(shards, folder, lambda count, total: None)
    return folder


@dataclass
class Served:
    child: Child
    table: DatabaseTable
    keys: Path | None
    """The client's half of its keys."""
    temporary: Path
    """Where its temporary files lie."""

    @property
    def login(self) -> Login | None:
        return None if self.keys is None else load_client_keys(self.keys)

    def session(self) -> Any:
        return open_session(self.table.host, self.table.port, self.login)


@pytest.mark.slow
def test_a_preparation_that_was_ended_goes_on_where_it_was_and_is_whole_at_its_end_alone(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "form"

    def end(count: int, total: int) -> None:
        if count:
            raise KilledError

    def ingest_and_kill(*arguments: Any) -> None:
        ingest(*arguments)
        below = psutil.Process().children(recursive=True)
        (java,) = (one for one in below if one.name() == "java" and str(folder) in " ".join(one.cmdline()))
        java.kill()

    with pytest.raises(KilledError):
        prepare(shards, folder, end)
    with pytest.raises(ShardError, match=r"form\.json.*prepare"):
        open_form(folder)
    done: list[int] = []
    with monkeypatch.context() as patch, pytest.raises(DatabaseServerError, match="before its tables were written"):
        patch.setattr("loaders.nosql.form.ingest", ingest_and_kill)
        prepare(shards, folder, lambda count, total: done.append(count))
    assert 0 < done[0] < done[-1] == SAMPLES
    with pytest.raises(ShardError, match=r"form\.json.*prepare"):
        open_form(folder)
    prepare(shards, folder, lambda count, total: None)
    assert open_form(folder).samples == SAMPLES


@pytest.fixture(scope="module")
def servers(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Served]]:
    """Two servers of one folder at once, an open one and one with keys."""
    log = tmp_path_factory.mktemp("logs")
    daemon, client = make_keys(tmp_path_factory.mktemp("keys"))
    halves = {"open": None, "secure": client}
    with ExitStack() as stack:
        children = {
            name: stack.enter_context(
                Child(
                    [
                        *(sys.executable, "-m", "loaders.nosql", "serve", "--root", str(prepared)),
                        *("--listen", "127.0.0.1:0", "--heap-mb", "512", "--until-eof", *options),
                    ],
                    cwd=REPO,
                    env={**os.environ, "TMPDIR": str(log)},
                    stderr=log / name,
                )
            )
            for name, options in (("open", ()), ("secure", ("--keys", str(daemon))))
        }
        yield {
            name: Served(child, DatabaseTable.parse(str(child.ready(READY_S)["endpoint"])), halves[name], log)
            for name, child in children.items()
        }


def contents(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and time of change of every file."""
    found = {path: path.stat() for path in folder.rglob("*") if path.is_file()}
    return {str(path.relative_to(folder)): (stat.st_size, stat.st_mtime_ns) for path, stat in found.items()}


def rows(session: Any, table: DatabaseTable) -> list[Any]:
    query = session.prepare(table.select)
    return [session.execute(query, [sample_uuid(sample)]).one() for sample in range(SAMPLES)]


def expected(shards: Path) -> dict[int, tuple[int, int, int, bytes]]:
    """Label, offset and size of the file, and record of every sample, as the shards have them."""
    found = {}
    for shard in ShardSet.open(shards).shards:
        data = shard.path.read_bytes()
        for offset, size, image, image_size, label, sample, _ in shard.records.tolist():
            found[sample] = (label, image, image_size, data[offset : offset + size])
    return found


def test_the_metadata_of_a_dataset_is_read_by_its_columns(servers: dict[str, Served]) -> None:
    secure = servers["secure"]
    metadata = fetch_metadata(secure.table, label="label", login=secure.login)
    assert metadata["label"].tolist() == [index % 7 for index in range(SAMPLES)]
    with pytest.raises(SplitError, match=r"samples_metadata: column 'patient' is empty in 200 rows"):
        fetch_metadata(secure.table, entity="patient", login=secure.login)
    with pytest.raises(SplitError, match=r"there is no column 'age'; .*patient"):
        fetch_metadata(secure.table, label="age", login=secure.login)
    with pytest.raises(SplitError, match=r"joulefeed\.other: there is no whole dataset"):
        fetch_metadata(replace(secure.table, name="other"), login=secure.login)


def test_two_servers_of_one_folder_have_every_record_and_write_nothing_into_it(
    prepared: Path, shards: Path, servers: dict[str, Served]
) -> None:
    before = contents(prepared)
    assert servers["open"].table.port != servers["secure"].table.port
    for served in servers.values():
        with served.session() as session:
            found = {row.sample_id: (row.label, row.file, row.size, row.record) for row in rows(session, served.table)}
            assert found == expected(shards)
            marker = session.execute(session.prepare(served.table.find), [served.table.name]).one()
            assert (marker.samples, marker.key) == (SAMPLES, "first")
            (patient,) = session.execute(
                f"SELECT patient, boxes FROM joulefeed.samples_metadata WHERE sample = {sample_uuid(5)}"
            )
            assert (patient.patient, patient.boxes) == ("p5", [5.0, 5.0])
            # What a client writes is the server's own, and gone with it.
            session.execute("TRUNCATE joulefeed.samples_metadata")
    assert contents(prepared) == before


def test_the_kernel_can_forget_all_that_servers_map_of_the_tables(prepared: Path, servers: dict[str, Served]) -> None:
    with servers["open"].session() as session:
        assert rows(session, servers["open"].table)
    assert drop_caches(prepared, "tree", [prepared.parent]) == "fadvise"


def listening(served: Served) -> set[Any]:
    """The addresses on which a server and its processes listen."""
    return {
        connection.laddr
        for process in psutil.Process(served.child.pid).children(recursive=True)
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }


def test_nothing_listens_beyond_its_address_and_loopback(servers: dict[str, Served]) -> None:
    for served in servers.values():
        heard = listening(served)
        assert {address.ip.removeprefix("::ffff:") for address in heard} == {"127.0.0.1"}
        assert served.table.port in {address.port for address in heard}
        assert len(heard) == 2


def test_only_the_client_of_the_keys_is_served(servers: dict[str, Served], tmp_path: Path) -> None:
    secure = servers["secure"]
    assert secure.login is not None
    _, stranger = make_keys(tmp_path / "keys")
    for login, told in (
        (replace(secure.login, password="wrong"), "refused the password of role 'cassandra'"),
        (replace(secure.login, password="cassandra"), "refused the password of role 'cassandra'"),
        (load_client_keys(stranger), "no database answers"),
        (None, "no database answers"),
    ):
        with (
            pytest.raises(StreamError, match=rf"127\.0\.0\.1:{secure.table.port}.*{told}"),
            open_session(secure.table.host, secure.table.port, login, timeout_s=10),
        ):
            pytest.fail("it was let in")
    with NoSQLLoader(endpoint=secure.table.endpoint, keys=secure.keys, batch_size=32, seed=0, decode="raw") as loader:
        assert sorted(k for batch in loader.epoch(0) for k in batch.ids.tolist()) == list(range(SAMPLES))
    for keys in (None, stranger):
        with pytest.raises(StreamError, match=f"127.0.0.1:{secure.table.port}: no database answers"):
            NoSQLLoader(endpoint=secure.table.endpoint, keys=keys, batch_size=32, seed=0, timeout_s=5)
    argv = " ".join(part for one in psutil.Process(secure.child.pid).children(recursive=True) for part in one.cmdline())
    assert secure.login.password not in argv


def test_the_port_between_nodes_speaks_to_its_own_keys_alone(servers: dict[str, Served], tmp_path: Path) -> None:
    secure = servers["secure"]
    assert secure.login is not None
    (port,) = {address.port for address in listening(secure)} - {secure.table.port}
    stranger = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    stranger.check_hostname, stranger.verify_mode = False, ssl.CERT_NONE
    _, client = make_keys(tmp_path / "keys")
    stranger.load_cert_chain(client / CLIENT_KEY)
    with socket.create_connection(("127.0.0.1", port), 10) as known, secure.login.context.wrap_socket(known) as tls:
        assert tls.getpeercert()
        tls.settimeout(1)
        with pytest.raises(TimeoutError):
            tls.recv(1)
    with (
        pytest.raises((ssl.SSLError, ConnectionError)),
        socket.create_connection(("127.0.0.1", port), 10) as other,
        stranger.wrap_socket(other) as tls,
    ):
        assert tls.recv(1)


INGEST = """
import os, signal, sys
from pathlib import Path
from loaders.nosql.ingest import ingest
from loaders.nosql.schema import DatabaseTable

def end(done, total):
    if done:
        os.kill(os.getpid(), signal.SIGKILL)

ingest(Path(sys.argv[1]), DatabaseTable.parse(sys.argv[2]), end)
"""


@pytest.mark.slow
def test_an_ingest_that_was_killed_goes_on_and_gives_the_same_table(servers: dict[str, Served], shards: Path) -> None:
    at = servers["open"].table
    table = DatabaseTable(at.host, at.port, "other", "train")
    argv = [sys.executable, "-c", INGEST, str(shards), table.endpoint]
    assert subprocess.run(argv, cwd=REPO, check=False, timeout=120).returncode == -signal.SIGKILL
    with servers["open"].session() as session:
        find = session.prepare(table.find)
        assert session.execute(find, [table.name]).one() is None, "a half is no whole dataset"
        assert session.execute(find, [table.partial]).one().key == "first"
        done: list[int] = []
        ingest(shards, table, lambda count, total: done.append(count))
        assert 0 < done[0] < done[-1] == SAMPLES
        first = rows(session, table)
        assert {row.sample_id: (row.label, row.file, row.size, row.record) for row in first} == expected(shards)
        assert session.execute(find, [table.name]).one().samples == SAMPLES
        assert session.execute(find, [table.partial]).one() is None
        ingest(shards, table)
        assert rows(session, table) == first


def test_tables_of_another_dataset_are_left_alone(servers: dict[str, Served], shards: Path, tmp_path: Path) -> None:
    one = write_samples(tmp_path, [("one.bin", b"one")])
    other = convert(one, tmp_path / "shards", key="second", seed=1, shard_bytes=100)
    with pytest.raises(LoaderConfigError, match=r"another dataset.*first.*second"):
        ingest(other, servers["open"].table)


def refusal(*argv: str, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "loaders.nosql", *argv],
        cwd=REPO,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    return done.stderr


def test_what_cannot_be_served_is_refused_in_one_line(prepared: Path, tmp_path: Path) -> None:
    form, before = str(prepared), set(prepared.parent.glob(".form-served-*"))
    # Of a server that was lost with its machine: nobody holds it, and the next start removes it.
    prepared.with_name(".form-served-lost").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = refusal("serve", "--root", form, "--listen", f"127.0.0.1:{port}")
    assert f"127.0.0.1:{port} cannot be listened on (Address already in use): stop what listens there" in said
    assert "prepare" in refusal("serve", "--root", str(tmp_path / "none"))
    assert "announces one address" in refusal("serve", "--root", form, "--listen", "*:0", "--no-auth")
    assert "no address of this host" in refusal("serve", "--root", form, "--listen", "192.0.2.1:0", "--no-auth")
    assert "without keys anyone" in refusal("serve", "--root", form, "--listen", "192.0.2.1:0")
    assert "keygen" in refusal("serve", "--root", form, "--keys", str(tmp_path))
    assert "--heap-mb 1" in refusal("serve", "--root", form, "--heap-mb", "1")
    said = refusal("serve", "--root", form, "--listen", "127.0.0.1:0", env={"CASSANDRA_HOME": str(tmp_path)})
    assert f"CASSANDRA_HOME={tmp_path} has no lib/apache-cassandra-" in said
    assert "manifest.json" in refusal("prepare", "--shards", form, "--out", str(tmp_path / "new"))
    assert set(prepared.parent.glob(".form-served-*")) == before


@pytest.mark.parametrize("module", ["joulefeed.server", "loaders.nosql.server.process"])
def test_a_port_that_is_taken_while_it_starts_is_given_up_for_another_one(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = iter([taken.getsockname()[1]])
        monkeypatch.setattr(
            f"{module}.find_free_port", lambda *args, **named: next(ports, None) or find_free_port(*args, **named)
        )
        with CassandraServer(tmp_path / "home", removes_home=True):
            assert next(ports, None) is None


def test_what_cannot_be_prepared_is_refused_and_a_folder_of_something_else_is_left_as_it_is(
    shards: Path, tmp_path: Path
) -> None:
    (tmp_path / "notes").write_text("mine")
    said = refusal("prepare", "--shards", str(shards), "--out", str(tmp_path))
    assert f"{tmp_path} has files that are not of tables, such as notes: name a new or empty folder" in said
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]
    said = refusal("prepare", "--shards", str(shards), "--out", str(tmp_path / "notes"))
    assert "notes: Not a directory: expected a folder" in said


def test_a_server_that_is_killed_or_let_go_leaves_nothing(prepared: Path, servers: dict[str, Served]) -> None:
    family = [
        process for served in servers.values() for process in psutil.Process(served.child.pid).children(recursive=True)
    ]
    assert sum(process.name() == "java" for process in family) == 2
    os.kill(servers["open"].child.pid, signal.SIGKILL)
    servers["secure"].child.hang_up()
    _, alive = psutil.wait_procs(family, GONE_S)
    assert not alive
    deadline = time.monotonic() + GONE_S
    temporary = servers["open"].temporary
    while left := [*prepared.parent.glob(".form-served-*"), *temporary.glob("joulefeed-cassandra-*")]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)
