"""Whatever becomes of the store, the reader or its workers, an epoch is whole or ends with an error in time.

MosaicML Streaming by itself ends an epoch early and in silence where a worker's download thread fails.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path

import obstore
import psutil
import pytest

from harness.run.prepare import python_of
from loaders import LoaderConfigError, StreamError, WorkerError
from loaders.errors import NoAnswerError
from loaders.mosaic import MosaicLoader
from loaders.mosaic.keys import make_keys

pytestmark = pytest.mark.process

COUNT = 60
LIMIT_S = 3.0
PATIENT_S = 10.0
"""Within which a batch comes on a busy machine."""
SLACK_S = 20.0
"""For a busy machine."""


def ids_of(batches):
    return Counter(int(sample_id) for batch in batches for sample_id in batch.ids)


@pytest.mark.slow
def test_a_store_that_is_down_at_the_start_is_named_at_once_and_one_that_is_stopped_in_time(own_store):
    own_store.signal(signal.SIGSTOP)
    with pytest.raises(
        NoAnswerError, match=rf"{own_store.host}: s3://joulefeed/mds: its index has not come within 3 s"
    ):
        own_store.load(timeout_s=LIMIT_S)
    own_store.signal(signal.SIGCONT)
    own_store.kill()
    with pytest.raises(StreamError, match=rf"{own_store.host} cannot be reached for .*see whether the daemon runs"):
        own_store.load()


def test_a_store_that_is_killed_in_an_epoch_is_named_with_the_key_and_serves_the_next_when_it_is_back(own_store):
    with own_store.load() as loader:
        epoch = loader.epoch(0)
        next(epoch)
        own_store.kill()
        with pytest.raises(StreamError, match=rf"{own_store.host}: s3://joulefeed/mds/shard\.0000\d\.mds cannot be"):
            list(epoch)
        with pytest.raises(StreamError, match="cannot be reached"):
            list(loader.epoch(1))
        own_store.restart()
        assert ids_of(loader.epoch(1)) == Counter(range(COUNT))


@pytest.mark.slow
def test_a_store_that_is_back_while_downloads_are_tried_again_leaves_the_epoch_whole(own_store):
    with own_store.load(download_retry=6) as loader:
        epoch = loader.epoch(0)
        first = next(epoch)
        own_store.kill()
        back = threading.Timer(2.0, own_store.restart)
        back.start()
        try:
            assert ids_of([first, *epoch]) == Counter(range(COUNT))
        finally:
            back.join()


@pytest.mark.slow
def test_a_store_that_is_silent_in_an_epoch_is_waited_for_no_longer_than_the_limit(own_store):
    with own_store.load(timeout_s=PATIENT_S) as loader:
        epoch = loader.epoch(0)
        first = next(epoch)
        own_store.signal(signal.SIGSTOP)
        back = threading.Timer(1, own_store.signal, [signal.SIGCONT])
        back.start()
        assert ids_of([first, *epoch]) == Counter(range(COUNT))
        back.join()
        epoch = loader.epoch(1)
        next(epoch)
        own_store.signal(signal.SIGSTOP)
        with pytest.raises(NoAnswerError, match=rf"{own_store.host}: .*a batch has not come within 10 s; .*timeout_s"):
            list(epoch)
    own_store.kill()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("shard.00003.mds", None, r"/shard.00003.mds cannot be downloaded: HTTP status 404.*; prepare the data again"),
        ("shard.00003.mds", "bytes", r"/shard.00003.mds: sample 3\d: .*checksum.*; prepare the data again"),
        ("shard.00003.mds", "end", r"/shard.00003.mds(: sample 3\d: .*| cannot be read: .*); prepare the data again"),
        ("index.json", None, r"/index.json cannot be downloaded: HTTP status 404.*; prepare the data again"),
        ("index.json", "end", r"/index.json cannot be read: .*; prepare the data again"),
    ],
)
def test_an_object_that_is_missing_or_damaged_is_named(own_store, name, damage, message):
    objects = own_store.objects
    whole = bytes(obstore.get(objects, name).bytes())
    if damage is None:
        obstore.delete(objects, name)
    elif damage == "end":
        obstore.put(objects, name, whole[: len(whole) // 2])
    else:
        obstore.put(objects, name, whole[:2_000_000] + b"damage" + whole[2_000_006:])
    with pytest.raises(StreamError, match=f"{own_store.host}: .*{message}"), own_store.load() as loader:
        list(loader.epoch(0))


@pytest.mark.slow
def test_a_store_whose_disk_is_damaged_is_an_error(own_store):
    (part,) = own_store.folder.glob("joulefeed/mds/shard.00002.mds/*/part.1")
    with part.open("r+b") as file:
        file.seek(100_000)
        file.write(bytes(1000))
    with (
        own_store.load() as loader,
        pytest.raises(StreamError, match=rf"{own_store.host}: .*/shard.00002.mds cannot be"),
    ):
        list(loader.epoch(0))


def test_keys_of_another_store_are_refused(store, tmp_path):
    with pytest.raises(
        StreamError, match=rf"{store.host}: .*/index.json .*status 403, Forbidden; its access key is another one"
    ):
        store.load(keys=make_keys(tmp_path / "keys")[1])


def test_a_half_made_folder_is_not_served(shards, tmp_path):
    argv = [python_of("mosaic"), "-m", "loaders.mosaic", "prepare", "--root", shards, "--out", tmp_path / "half"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        process.kill()
    for command, message in (
        (
            ["serve", "--root", tmp_path / "half", "--keys", make_keys(tmp_path / "keys")[0]],
            "`prepare` made to its end",
        ),
        (["serve", "--root", tmp_path / "half"], "--keys: expected the daemon's half"),
        (
            ["serve", "--root", tmp_path / "half", "--keys", tmp_path / "keys" / "daemon", "--listen", "*:0"],
            "--listen *:0: expected one address of this host",
        ),
    ):
        argv = [sys.executable, "-m", "loaders.mosaic", *command]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 2 and message in done.stderr and len(done.stderr.splitlines()) == 1


@pytest.mark.slow
def test_a_daemon_that_is_killed_takes_its_store_along_and_the_next_one_removes_its_folder(prepared, tmp_path):
    root = shutil.copytree(prepared, tmp_path / "mds")
    keys, _ = make_keys(tmp_path / "keys")
    argv = [sys.executable, "-m", "loaders.mosaic", "serve", "--until-eof", "--root", root, "--keys", keys]
    folders = []
    for how in (signal.SIGKILL, signal.SIGTERM):
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert b'"ready": true' in process.stdout.readline()
            folders.append([path.name for path in tmp_path.glob(".mds-served-*")])
            started = psutil.Process(process.pid).children(recursive=True)
            process.send_signal(how)
        _, alive = psutil.wait_procs(started, timeout=SLACK_S)
        assert started and not alive
    assert len(folders[0]) == len(folders[1]) == 1 and folders[0] != folders[1]
    assert not list(tmp_path.glob(".mds-served-*"))


@pytest.mark.slow
def test_workers_share_no_connection(store):
    """With one they wait without end: a fault of MosaicML Streaming's, whose workers inherit that of the index."""
    others = set(psutil.Process().children(recursive=True))
    with store.load(num_workers=2) as loader:
        batches = loader.epoch(0)
        first = [next(batches) for _ in range(4)]
        started = [one for one in psutil.Process().children(recursive=True) if one not in others]
        ports = [
            end.laddr.port
            for one in started
            for end in one.net_connections("tcp")
            if end.raddr and end.raddr.port == store.server.port
        ]
        assert ports and max(Counter(ports).values()) == 1
        assert ids_of([*first, *batches]) == Counter(range(COUNT))


@pytest.mark.parametrize("algorithm", ["py1e", "py2s"])
def test_an_epoch_has_every_sample_once_where_the_buckets_of_samples_are_unequal(store, algorithm):
    with store.load(shuffle=True, shuffle_algo=algorithm, num_canonical_nodes=7, num_workers=2) as loader:
        assert ids_of(loader.epoch(0)) == Counter(range(COUNT))


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["reader", "worker"])
def test_a_reader_or_a_worker_that_is_killed_is_named_and_the_next_epoch_is_whole(store, traces, victim):
    others = set(psutil.Process().children(recursive=True))
    with store.load(num_workers=2) as loader:
        epoch = loader.epoch(0)
        next(epoch)
        (reader,) = (one for one in psutil.Process().children() if one not in others)
        # Its other child is Python's tracker of shared memory.
        workers = [one for one in reader.children() if one.cmdline() == reader.cmdline()]
        assert len(workers) == 2
        # As torch names what a worker leaves that is killed in the midst of making a batch.
        left = Path(f"/dev/shm/torch_{workers[0].pid}_left")
        if victim == "worker":
            left.touch()
        (reader if victim == "reader" else workers[0]).send_signal(signal.SIGKILL)
        named = f"process {reader.pid} that reads s3://joulefeed/mds"
        how = rf"{named} was killed by SIGKILL" if victim == "reader" else rf"{named}.*pid\D*{workers[0].pid}"
        with pytest.raises(WorkerError, match=how):
            list(epoch)
        assert ids_of(loader.epoch(1)) == Counter(range(COUNT))
        pids = {one.pid for one in psutil.Process().children() if one not in others} | {reader.pid}
        assert len(pids) == 2 and traces(pids)
    assert not traces(pids) and not left.exists()
    assert not [one for one in psutil.Process().children(recursive=True) if one not in others and one.is_running()]


def test_a_loader_that_is_killed_leaves_no_process_no_memory_and_no_folder(store, traces):
    script = (
        "import os, sys, time\n"
        "from loaders.mosaic import MosaicLoader\n"
        "loader = MosaicLoader(endpoint=sys.argv[1], keys=sys.argv[2], python=sys.argv[3], batch_size=2, seed=0, "
        "decode='raw', num_workers=2)\n"
        "epoch = loader.epoch(0); next(epoch); print('ready', flush=True); time.sleep(600)"
    )
    argv = [sys.executable, "-c", script, store.endpoint, str(store.keys), python_of("mosaic")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"ready\n"
        started = psutil.Process(process.pid).children(recursive=True)
        pids = {one.pid for one in started}
        assert len(started) >= 3 and len(traces(pids)) > 1
        os.kill(process.pid, signal.SIGKILL)
    _, alive = psutil.wait_procs(started, timeout=SLACK_S)
    assert not alive and not traces(pids)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"shuffle_algo": "py9"}, "shuffle_algo='py9': expected one of py1e"),
        ({"cache_limit": "1kb"}, "cache_limit"),
        ({"python": sys.executable}, "mosaicml-streaming is not installed"),
        ({"python": "/no/python"}, "python=/no/python: No such file or directory: expected a Python"),
    ],
)
def test_what_the_library_refuses_is_a_wrong_argument(store, traces, wrong, message):
    with pytest.raises(LoaderConfigError, match=message):
        store.load(**wrong)
    assert not traces(set())


@pytest.mark.parametrize(
    "endpoint",
    [
        "s3://joulefeed/mds",
        "s3://joulefeed/mds?endpoint=http://127.0.0.1:9000&region=here",
        "s3://joulefeed/mds?endpoint=http://user:word@127.0.0.1:9000",
        "s3://joulefeed/mds?endpoint=http://127.0.0.1:99999",
        "s3://joulefeed/mds?endpoint=ftp://127.0.0.1:9000",
    ],
)
def test_an_endpoint_of_another_form_is_refused(endpoint, monkeypatch):
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(LoaderConfigError, match=r"expected (s3://BUCKET|http://HOST:PORT)"):
        MosaicLoader(endpoint=endpoint, batch_size=2, seed=0)


def test_a_folder_for_temporary_files_in_which_no_socket_fits_is_refused(store, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", f"/tmp/{'long' * 12}")
    with pytest.raises(LoaderConfigError, match=r"TMPDIR=/tmp/longlong.*at most 49 bytes"):
        store.load()
