"""Epochs of shards in an object store: those of the folder, whatever the cache has room for."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from loaders.streaming.objects.upload import upload

pytestmark = pytest.mark.process

ALL = list(range(160))
MIB = 2**20


def epoch_of(loader, number):
    return [(batch.ids.tolist(), [bytes(image) for image in batch.images()]) for batch in loader.epoch(number)]


def ids_of(batches):
    return sorted(sample_id for ids, _ in batches for sample_id in ids)


def allocated(folder: Path) -> int:
    return sum(512 * path.stat().st_blocks for path in folder.rglob("*.tfrecord"))


@pytest.fixture(scope="module")
def prefix(store, shards):
    return store.add(shards)


def test_epochs_are_those_of_the_folder(store, prefix, shards, start_daemon, start_serving, open_loader):
    with open_loader(start_daemon(shards)) as folder, open_loader(start_serving(store, prefix)) as objects:
        for number in range(3):
            batches = epoch_of(objects, number)
            assert ids_of(batches) == ALL
            assert batches == epoch_of(folder, number)


@pytest.mark.parametrize("wire", ["raw", "msgpack"])
@pytest.mark.parametrize("cache_mb", [1, 6])
def test_a_cache_that_is_too_small_keeps_its_bound(
    store, prefix, start_serving, open_loader, report, tmp_path, cache_mb, wire
):
    daemon = start_serving(store, prefix, "--cache-mb", str(cache_mb))
    with open_loader(daemon, wire=wire) as loader:
        for number in range(3):
            assert ids_of(epoch_of(loader, number)) == ALL
            assert allocated(tmp_path / "cache") <= cache_mb * MIB
    found = report(daemon)
    assert found["cached_bytes"] <= cache_mb * MIB
    assert found["evicted_bytes"] + found["uncached_bytes"] > 0


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_the_cache_survives_the_daemon_and_is_its_users_alone(
    store, prefix, start_serving, open_loader, report, tmp_path, end
):
    daemon = start_serving(store, prefix)
    (folder,) = (tmp_path / "cache").iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    folder.chmod(0o755)
    with open_loader(daemon) as loader:
        epoch_of(loader, 0)
    assert report(daemon)["fetched_bytes"] > 0
    getattr(daemon, end)()
    again = start_serving(store, prefix)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    with open_loader(again) as loader:
        assert ids_of(epoch_of(loader, 1)) == ALL
    assert report(again)["fetched_bytes"] == 0


def test_shards_that_were_replaced_are_not_served_from_the_cache(
    store, shards, make_shards, start_serving, start_daemon, open_loader, tmp_path
):
    prefix = store.add(shards)
    daemon = start_serving(store, prefix)
    with open_loader(daemon) as loader:
        epoch_of(loader, 0)
    assert daemon.stop() == 0
    (tmp_path / "others").mkdir()
    others = make_shards(tmp_path / "others", shards=5, records=32, size=100_000)
    upload(others, store.bucket(prefix), replace=True)
    with open_loader(start_serving(store, prefix)) as objects, open_loader(start_daemon(others)) as folder:
        assert epoch_of(objects, 0) == epoch_of(folder, 0)


def test_blocks_of_the_cache_that_were_damaged_are_fetched_again(
    store, prefix, shards, start_daemon, start_serving, open_loader, report, tmp_path
):
    daemon = start_serving(store, prefix)
    with open_loader(daemon) as loader, open_loader(start_daemon(shards)) as folder:
        epoch_of(loader, 0)
        for path in (tmp_path / "cache").rglob("*.tfrecord"):
            with path.open("r+b") as file:
                file.seek(1_234_567)
                file.write(bytes(100_000))
        before = report(daemon)["fetched_bytes"]
        assert epoch_of(loader, 1) == epoch_of(folder, 1)
        assert report(daemon)["fetched_bytes"] > before


def test_a_cache_is_one_daemons(store, prefix, start_serving, fail_to_serve, tmp_path):
    daemon = start_serving(store, prefix)
    line = fail_to_serve(store, prefix)
    assert f"--cache {tmp_path}" in line
    assert "another daemon" in line
    assert daemon.stop() == 0
    start_serving(store, prefix)


@pytest.mark.root
def test_a_full_disk_leaves_out_the_cache(store, prefix, start_serving, open_loader, report, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=5m", "tmpfs", disk], check=True)
    try:
        daemon = start_serving(store, prefix, cache=disk / "cache")
        with open_loader(daemon) as loader:
            for number in range(2):
                assert ids_of(epoch_of(loader, number)) == ALL
        assert report(daemon)["uncached_bytes"] > 0
        assert daemon.stop() == 0
        log = (tmp_path / "log").read_text()
        assert log.count('"cache_full"') == 1
        assert "the disk is full" in log
        assert str(disk) in log
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--root", "s3://shards/set"], "needs --cache DIR"),
        (["--root", "s3://Shards?/set", "--cache", "c"], "expected s3://BUCKET/PREFIX"),
        (["--root", "s3://shards/a/../b", "--cache", "c"], "relative parts"),
        (["--root", "shards", "--cache", "c"], "--cache is for --root s3://"),
        (["--root", "s3://shards/set", "--cache", "c", "--s3-endpoint", "host:9000"], "expected http://HOST:PORT"),
        (["--root", "s3://shards/set", "--cache", "c", "--cache-mb", "0"], "--cache-mb 0"),
        (["--root", "s3://shards/set", "--cache", "c", "--s3-keys", "none"], "none cannot be read"),
    ],
)
def test_wrong_options_are_one_line(argv, words, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "loaders.streaming", "serve", "--listen", "127.0.0.1:0", *argv],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=tmp_path,
        env={"PYTHONPATH": str(Path(__file__).parents[4]), "PATH": "/usr/bin"},
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert words in line
